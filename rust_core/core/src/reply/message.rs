//! The message of a choice: text, thinking and tool calls, as a server sends them.

use std::borrow::Cow;

use super::canonical::assistant;
use super::error::{Result, fail};
use super::scanner::Scanner;

/// A call that a model asked for, as it came: the name may name no tool, and the arguments may be no JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolCall {
    /// The server's id, or the empty string.
    pub id: String,
    /// The tool's name, or the empty string.
    pub name: String,
    /// The text of the arguments; where a server sends a value instead of a string, that value's own text.
    pub arguments: String,
}

/// What the model said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// Who speaks; empty where the server does not say.
    pub role: String,
    /// The visible text, parts joined; empty where the server sent null.
    pub content: String,
    /// Why the model would not answer.
    pub refusal: Option<String>,
    /// What it thought, where the server sends that beside the text.
    pub reasoning: Option<String>,
    /// Its calls, in order.
    pub tool_calls: Vec<ToolCall>,
}

impl Message {
    /// What the user sees: the content, or the refusal where there is none.
    #[must_use]
    pub fn text(&self) -> &str {
        if self.content.is_empty() { self.refusal.as_deref().unwrap_or_default() } else { &self.content }
    }

    /// The message for the history in canonical bytes.
    ///
    /// `turn` is the number of the model turn on its path, from 0; tool call ids are made of it.
    ///
    /// # Errors
    /// [`crate::Error::Value`] if there are calls and `turn` is 36^4 or more, or there are more than 36^3 calls.
    pub fn canonical(&self, turn: u32) -> crate::error::Result<Vec<u8>> {
        assistant(self.text(), &self.tool_calls, turn)
    }

    /// The message that this one is the rest of.
    #[must_use]
    pub(crate) fn after(&self, beginning: &str) -> Self {
        Self { content: format!("{beginning}{}", self.text()), ..self.clone() }
    }

    /// Read a text that no server has taken apart.
    pub(super) fn raw(scan: &mut Scanner<'_>) -> Result<Self> {
        Ok(Self { content: scan.string()?.into_owned(), ..Self::default() })
    }

    /// Read one.
    pub(super) fn read(scan: &mut Scanner<'_>) -> Result<Self> {
        let mut message = Self::default();
        let mut parts = Parts::default();
        // Servers call it one or the other; the first that is not null counts.
        let (mut reasoning_content, mut reasoning) = (None, None);
        let mut legacy = None;
        let names = ["role", "content", "refusal", "reasoning_content", "reasoning", "tool_calls", "function_call"];
        scan.object(&names, |scan, name| {
            match name {
                "role" => message.role = loose(scan)?.unwrap_or_default().into_owned(),
                "content" => parts.read(scan)?,
                "refusal" => message.refusal = text(scan)?,
                "reasoning_content" => reasoning_content = scan.optional(loose)?,
                "reasoning" => reasoning = scan.optional(loose)?,
                "tool_calls" => message.tool_calls = scan.optional(tool_calls)?.unwrap_or_default(),
                _ => legacy = function_call(scan)?,
            }
            Ok(())
        })?;
        if message.tool_calls.is_empty() {
            message.tool_calls.extend(legacy);
        }
        message.content = parts.content;
        message.reasoning = reasoning_content.or(reasoning).flatten().map(Cow::into_owned);
        if parts.listed && message.reasoning.as_deref().unwrap_or_default().is_empty() {
            message.reasoning = Some(parts.thought).filter(|thought| !thought.is_empty());
        }
        Ok(message)
    }
}

/// Content, which may come in parts, some of them thinking.
#[derive(Default)]
struct Parts {
    listed: bool,
    content: String,
    thought: String,
}

impl Parts {
    fn read(&mut self, scan: &mut Scanner<'_>) -> Result<()> {
        if scan.peek() == b'[' {
            self.listed = true;
            return scan.list(|scan| self.part(scan));
        }
        self.content = text(scan)?.unwrap_or_default();
        Ok(())
    }

    fn part(&mut self, scan: &mut Scanner<'_>) -> Result<()> {
        if scan.peek() == b'"' {
            self.content.push_str(&scan.string()?);
            return Ok(());
        }
        scan.object(&["text", "thinking"], |scan, name| {
            let out = if name == "text" { &mut self.content } else { &mut self.thought };
            if name == "thinking" && scan.peek() == b'[' {
                return scan.list(|scan| thought(scan, out));
            }
            out.push_str(&scan.optional(Scanner::string)?.unwrap_or_default());
            Ok(())
        })
    }
}

/// One piece of thinking; what is no object with a text says nothing.
fn thought(scan: &mut Scanner<'_>, out: &mut String) -> Result<()> {
    if scan.peek() != b'{' {
        return scan.skip();
    }
    scan.object(&["text"], |scan, _| {
        out.push_str(&loose(scan)?.unwrap_or_default());
        Ok(())
    })
}

fn tool_calls(scan: &mut Scanner<'_>) -> Result<Vec<ToolCall>> {
    let mut calls = Vec::new();
    scan.list(|scan| {
        let mut call = ToolCall::default();
        scan.object(&["id", "function"], |scan, name| {
            if name == "id" {
                call.id = scan.optional(label)?.unwrap_or_default().into_owned();
                return Ok(());
            }
            scan.optional(|scan| function(scan, &mut call)).map(|_| ())
        })?;
        calls.push(call);
        Ok(())
    })?;
    Ok(calls)
}

/// The one call of servers from before there were several; no name, no call.
fn function_call(scan: &mut Scanner<'_>) -> Result<Option<ToolCall>> {
    if scan.peek() != b'{' {
        return scan.skip().map(|()| None);
    }
    let mut call = ToolCall::default();
    function(scan, &mut call)?;
    Ok(Some(call).filter(|call| !call.name.is_empty()))
}

fn function(scan: &mut Scanner<'_>, call: &mut ToolCall) -> Result<()> {
    scan.object(&["name", "arguments"], |scan, name| {
        match name {
            "name" => call.name = text(scan)?.unwrap_or_default(),
            _ if scan.peek() == b'"' => call.arguments = scan.string()?.into_owned(),
            _ => call.arguments = scan.optional(Scanner::raw)?.map(str::to_owned).unwrap_or_default(),
        }
        Ok(())
    })
}

/// Read a string or null.
fn text(scan: &mut Scanner<'_>) -> Result<Option<String>> {
    scan.optional(Scanner::string).map(|text| text.map(Cow::into_owned))
}

/// Read a string, or an integer as its digits.
pub fn label<'a>(scan: &mut Scanner<'a>) -> Result<Cow<'a, str>> {
    if !matches!(scan.peek(), b'-' | b'0'..=b'9') {
        return scan.string();
    }
    let start = scan.offset();
    let number = scan.number()?;
    if !number.is_whole() {
        return fail(start, "a string, an integer or null is needed");
    }
    Ok(Cow::Borrowed(if number.text == "-0" { "0" } else { number.text }))
}

/// Read a value that is used where it is a string; any other counts as there, but says nothing.
pub fn loose<'a>(scan: &mut Scanner<'a>) -> Result<Option<Cow<'a, str>>> {
    if scan.peek() == b'"' { scan.string().map(Some) } else { scan.skip().map(|()| None) }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::{Message, ToolCall};
    use crate::reply::scanner::Scanner;

    fn message(json: &str) -> Message {
        Message::read(&mut Scanner::new(json.as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn content_may_come_in_parts() {
        let found = message(
            r#"{"content":[{"thinking":"a"},{"thinking":[{"text":"b"},7,{"text":[]}]},{"text":"c"},"d",{"x":1}]}"#,
        );
        assert_eq!((found.text(), found.reasoning.as_deref()), ("cd", Some("ab")));
        let found = message(r#"{"content":[{"thinking":"a"}],"reasoning":"b"}"#);
        assert_eq!((found.text(), found.reasoning.as_deref()), ("", Some("b")));
        assert_eq!(message(r#"{"content":[],"reasoning":""}"#).reasoning, None);
    }

    #[test]
    fn reasoning_has_two_names() {
        let reasoning = |json| message(json).reasoning;
        assert_eq!(reasoning(r#"{"reasoning":"a","reasoning_content":"b"}"#).as_deref(), Some("b"));
        assert_eq!(reasoning(r#"{"reasoning":"a","reasoning_content":null}"#).as_deref(), Some("a"));
        assert_eq!(reasoning(r#"{"reasoning":"a","reasoning_content":""}"#).as_deref(), Some(""));
        assert_eq!(reasoning(r#"{"reasoning":"a","reasoning_content":{"odd":1}}"#), None);
        assert_eq!(reasoning("{}"), None);
    }

    #[test]
    fn a_refusal_is_what_the_user_sees() {
        let found = message(r#"{"role":"assistant","content":null,"refusal":"no"}"#);
        assert_eq!((found.role.as_str(), found.text(), found.content.as_str()), ("assistant", "no", ""));
        assert_eq!(found.canonical(0).unwrap(), br#"{"role":"assistant","content":"no"}"#);
    }

    #[test]
    fn arguments_keep_their_own_text() {
        let json = r#"{"tool_calls":[{"id":7,"function":{"name":"f","arguments":{"q": ["a", 1]}}},
            {"function":{"arguments":"\u00e9 {"}},{"id":"a","function":null},{"function":{"name":"g","arguments":null}}]}"#;
        let call = |id: &str, name: &str, arguments: &str| ToolCall {
            id: id.to_owned(),
            name: name.to_owned(),
            arguments: arguments.to_owned(),
        };
        let expected =
            [call("7", "f", r#"{"q": ["a", 1]}"#), call("", "", "é {"), call("a", "", ""), call("", "g", "")];
        assert_eq!(message(json).tool_calls, expected);
        assert!(Message::read(&mut Scanner::new(br#"{"tool_calls":[{"id":1.5}]}"#).unwrap()).is_err());
    }

    #[test]
    fn a_call_of_the_old_form_is_a_call() {
        let calls = |json: &str| {
            let calls = message(json).tool_calls;
            calls.into_iter().map(|call| call.name + "(" + &call.arguments + ")").collect::<Vec<_>>()
        };
        assert_eq!(calls(r#"{"content":null,"function_call":{"name":"f","arguments":"{}"}}"#), ["f({})"]);
        assert_eq!(calls(r#"{"function_call":{"name":"f","arguments":"{}"},"tool_calls":[]}"#), ["f({})"]);
        let both = r#"{"function_call":{"name":"f"},"tool_calls":[{"function":{"name":"g","arguments":"{}"}}]}"#;
        assert_eq!(calls(both), ["g({})"]);
        for none in
            [r#"{"function_call":null}"#, r#"{"function_call":{"name":"","arguments":""}}"#, r#"{"function_call":""}"#]
        {
            assert!(calls(none).is_empty(), "{none}");
        }
    }
}
