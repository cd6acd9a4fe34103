//! Any bytes are a reply or an error inside them; a reply's columns fit together, and reading it again gives it again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trunkline_core::TokenSlice;
use trunkline_core::reply::{ParsedChoice, Entropy, Form, ReplyOptions, read};

fn check(choice: &ParsedChoice) {
    if let Some(listed) = &choice.listed {
        assert_eq!(listed.logprobs.len(), listed.entropies.len());
        assert!(listed.logprobs.iter().all(|l| l.is_nan() || (-9999.0..=0.0).contains(l)));
        assert!(listed.entropies.iter().all(|h| h.is_nan() || (0.0..=10_030.0).contains(h)));
    }
    if let Some(tokens) = &choice.tokens {
        TokenSlice::new(&tokens.ids, &tokens.logprobs, &tokens.versions, &tokens.flags).unwrap();
        assert!(choice.is_aligned() || tokens.logprobs.iter().all(|l| l.is_nan()));
    }
    let figures = choice.uncertainty();
    assert!(figures.entropy.iter().chain(&figures.perplexity).all(|figure| figure.is_nan() || (0.0..=f32::MAX).contains(figure)));
    assert!(choice.message.canonical(1).unwrap().starts_with(br#"{"role":"assistant","content":"#));
}

fuzz_target!(|data: &[u8]| {
    // The last byte chooses among the options, the rest is the reply.
    let (kind, data) = data.split_last().map_or((0, data), |(last, rest)| (usize::from(*last), rest));
    let form = [Form::Chat, Form::Completion, Form::Generate][kind / 60 % 3];
    let options = ReplyOptions { form, entropy: Entropy::ALL[kind % 3], top: 1 + kind / 3 % 20, ..ReplyOptions::default() };
    match read(data, &options) {
        Ok(reply) => {
            reply.choices.iter().for_each(check);
            // Not knowing (NaN) is equal to not knowing only in writing.
            assert_eq!(format!("{reply:?}"), format!("{:?}", read(data, &options).unwrap()));
        }
        Err(error) => assert!(error.offset <= data.len()),
    }
});
