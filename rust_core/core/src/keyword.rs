//! Words for the values of options: an enum lists its words once, and there is one way from a word to a value.

use std::fmt;

use crate::error::{Error, Result, ValueError, beginning};

/// A type whose values users name by a word.
pub trait Keyword: Copy + 'static {
    /// What an error calls the option that a word is given for.
    const OPTION: &'static str;
    /// Every word, and its value.
    const WORDS: &'static [(&'static str, Self)];
    /// How an error lists the words.
    const LISTING: Listing;

    /// The value of a word.
    ///
    /// # Errors
    /// If it is none of the words; the error names it and lists them.
    fn from_word(word: &str) -> Result<Self> {
        Self::from_option(Self::OPTION, word)
    }

    /// The value of a word that is given for an option of another name.
    ///
    /// # Errors
    /// As of [`Keyword::from_word`].
    fn from_option(option: &str, word: &str) -> Result<Self> {
        let found = Self::WORDS.iter().find(|(known, _)| *known == word);
        let refuse =
            || Self::refuse(UnknownWord::new(option, word, Self::WORDS.iter().map(|known| known.0), Self::LISTING));
        found.map(|&(_, value)| value).ok_or_else(refuse)
    }

    /// The error for a word that is none.
    #[must_use]
    fn refuse(word: UnknownWord) -> Error {
        ValueError::Word(word).into()
    }
}

/// How an error lists the words that an option knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listing {
    /// `the entropy is "x"; it must be a, b or c`
    Or,
    /// `the rule is "x"; it must be "a", "b" or "c"`
    Quoted,
    /// `per is "x"; it must be one of a, b, c`
    OneOf,
    /// `centre is "x", and there are a, b, c; it must be one of these`
    Known,
    /// `"x" is no currency; it must be a, b or c`
    Kind,
    /// `"x" is not a termination`
    Nothing,
}

/// A word that is none of those that an option knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownWord {
    /// The option.
    pub option: String,
    /// The word, as far as its first 40 characters.
    pub word: String,
    /// The words there are.
    pub words: Vec<&'static str>,
    listing: Listing,
}

impl UnknownWord {
    /// What an option was given, and the words there are.
    pub fn new(option: &str, word: &str, words: impl IntoIterator<Item = &'static str>, listing: Listing) -> Self {
        let (option, word) = (beginning(option), beginning(word));
        Self { option, word, words: words.into_iter().collect(), listing }
    }
}

impl fmt::Display for UnknownWord {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { option, word, words, listing } = self;
        match listing {
            Listing::Or => write!(out, "{option} is {word:?}; it must be {}", either(words)),
            Listing::Quoted => {
                let quoted = words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>();
                write!(out, "{option} is {word:?}; it must be {}", either(&quoted))
            }
            Listing::OneOf => write!(out, "{option} is {word:?}; it must be one of {}", words.join(", ")),
            Listing::Known => {
                write!(out, "{option} is {word:?}, and there are {}; it must be one of these", words.join(", "))
            }
            Listing::Kind => write!(out, "{word:?} is no {option}; it must be {}", either(words)),
            Listing::Nothing => write!(out, "{word:?} is not {option}"),
        }
    }
}

impl std::error::Error for UnknownWord {}

/// `a, b or c`.
fn either<T: AsRef<str>>(words: &[T]) -> String {
    let words = words.iter().map(AsRef::as_ref).collect::<Vec<_>>();
    match words.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => words.concat(),
    }
}

/// Enums without data, with the word of each value, what errors call the option, and how they list its words.
macro_rules! keywords {
    ($(
        $(#[$meta:meta])*
        pub enum $name:ident as $option:literal, $listing:ident $(, $error:path)? {
            $($(#[$item:meta])* $variant:ident = $word:literal,)+
        }
    )+) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$item])* $variant,)+ }

        impl $name {
            /// Every value, in order.
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            /// The word that Python uses.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }

        impl $crate::keyword::Keyword for $name {
            const OPTION: &'static str = $option;
            const WORDS: &'static [(&'static str, Self)] = &[$(($word, Self::$variant)),+];
            const LISTING: $crate::keyword::Listing = $crate::keyword::Listing::$listing;

            $(fn refuse(word: $crate::keyword::UnknownWord) -> $crate::error::Error {
                $error(Box::new(word))
            })?
        }
    )+};
}

pub(crate) use keywords;

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::{Keyword, Listing, UnknownWord};

    keywords! {
        /// Three words.
        pub enum Colour as "the colour", Or {
            /// One.
            Red = "red",
            /// Two.
            Green = "green",
            /// Three.
            Blue = "blue",
        }
    }

    #[test]
    fn a_word_is_its_value_or_the_words_are_listed() {
        assert_eq!(Colour::ALL.map(|colour| Colour::from_word(colour.as_str())), Colour::ALL.map(Ok));
        let text = |listing| UnknownWord::new("the colour", "grey", ["red", "green", "blue"], listing).to_string();
        assert_eq!(text(Listing::Or), "the colour is \"grey\"; it must be red, green or blue");
        assert_eq!(text(Listing::Quoted), "the colour is \"grey\"; it must be \"red\", \"green\" or \"blue\"");
        assert_eq!(text(Listing::OneOf), "the colour is \"grey\"; it must be one of red, green, blue");
        assert_eq!(
            text(Listing::Known),
            "the colour is \"grey\", and there are red, green, blue; it must be one of these"
        );
        assert_eq!(text(Listing::Kind), "\"grey\" is no the colour; it must be red, green or blue");
        assert_eq!(text(Listing::Nothing), "\"grey\" is not the colour");
        let refused = Colour::from_option("the frame", &"x".repeat(99)).unwrap_err().to_string();
        assert!(refused.starts_with(&format!("the frame is \"{}\"; it must be red", "x".repeat(40))), "{refused}");
    }
}
