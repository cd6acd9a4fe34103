//! The message of a choice: text, thinking and tool calls, as a server sends them, and as a turn of the history is sent
//! again.

use std::borrow::Cow;

use crate::error::{Error, Result};
use crate::reply::scanner::{Scanner, is_object};
use crate::reply::string::plain;
use crate::reply::{ReplyResult, fail};

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
pub struct ReplyMessage {
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

impl ReplyMessage {
    /// What the user sees: the content, or the refusal if there is no content.
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
    pub fn canonical(&self, turn: u32) -> Result<Vec<u8>> {
        assistant(self.text(), &self.tool_calls, turn)
    }

    /// The message that this one is the rest of.
    #[must_use]
    pub(crate) fn after(&self, beginning: &str) -> Self {
        Self { content: format!("{beginning}{}", self.text()), ..self.clone() }
    }

    /// Read a text that no server has taken apart.
    pub(super) fn raw(scan: &mut Scanner<'_>) -> ReplyResult<Self> {
        Ok(Self { content: scan.string()?.into_owned(), ..Self::default() })
    }

    /// Read one.
    pub(super) fn read(scan: &mut Scanner<'_>) -> ReplyResult<Self> {
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
    fn read(&mut self, scan: &mut Scanner<'_>) -> ReplyResult<()> {
        if scan.peek() == b'[' {
            self.listed = true;
            return scan.list(|scan| self.part(scan));
        }
        self.content = text(scan)?.unwrap_or_default();
        Ok(())
    }

    fn part(&mut self, scan: &mut Scanner<'_>) -> ReplyResult<()> {
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
fn thought(scan: &mut Scanner<'_>, out: &mut String) -> ReplyResult<()> {
    if scan.peek() != b'{' {
        return scan.skip();
    }
    scan.object(&["text"], |scan, _| {
        out.push_str(&loose(scan)?.unwrap_or_default());
        Ok(())
    })
}

fn tool_calls(scan: &mut Scanner<'_>) -> ReplyResult<Vec<ToolCall>> {
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
fn function_call(scan: &mut Scanner<'_>) -> ReplyResult<Option<ToolCall>> {
    if scan.peek() != b'{' {
        return scan.skip().map(|()| None);
    }
    let mut call = ToolCall::default();
    function(scan, &mut call)?;
    Ok(Some(call).filter(|call| !call.name.is_empty()))
}

fn function(scan: &mut Scanner<'_>, call: &mut ToolCall) -> ReplyResult<()> {
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
fn text(scan: &mut Scanner<'_>) -> ReplyResult<Option<String>> {
    scan.optional(Scanner::string).map(|text| text.map(Cow::into_owned))
}

/// Read a string, or an integer as its digits.
pub fn label<'a>(scan: &mut Scanner<'a>) -> ReplyResult<Cow<'a, str>> {
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
pub fn loose<'a>(scan: &mut Scanner<'a>) -> ReplyResult<Option<Cow<'a, str>>> {
    if scan.peek() == b'"' { scan.string().map(Some) } else { scan.skip().map(|()| None) }
}

const TURNS: u32 = 36 * 36 * 36 * 36;
const CALLS: usize = 36 * 36 * 36;
/// Characters that are kept of a tool's name.
const NAME: usize = 64;

/// The message of a turn in canonical bytes, the same as `trunkline.llm.messages.assistant` writes.
///
/// Equal turns must be equal bytes and every server must take them, so calls get ids of our own, made from their place; a
/// name keeps only `[a-zA-Z0-9_-]`; empty arguments become `{}`, and those that are no JSON object travel as
/// `{"malformed": "<what the model wrote>"}`.
pub fn assistant(content: &str, calls: &[ToolCall], turn: u32) -> Result<Vec<u8>> {
    let mut out =
        Vec::with_capacity(64 + content.len() + calls.iter().map(|call| 128 + call.arguments.len()).sum::<usize>());
    out.extend_from_slice(br#"{"role":"assistant","content":"#);
    if content.is_empty() && !calls.is_empty() {
        out.extend_from_slice(b"null");
    } else {
        quote(&mut out, content);
    }
    for (index, call) in calls.iter().enumerate() {
        out.extend_from_slice(if index == 0 { br#","tool_calls":[{"id":""# } else { br#",{"id":""# });
        out.extend_from_slice(&call_id(turn, index)?);
        out.extend_from_slice(br#"","type":"function","function":{"name":""#);
        out.extend_from_slice(name(&call.name).as_bytes());
        out.extend_from_slice(br#"","arguments":"#);
        arguments(&mut out, &call.arguments);
        out.extend_from_slice(b"}}");
    }
    out.extend_from_slice(if calls.is_empty() { b"}" } else { b"]}" });
    Ok(out)
}

/// A tool's result for the history, with the id of its call.
///
/// # Errors
/// If the turn or the call has no id.
pub fn tool_result(turn: u32, index: usize, text: &str) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() + 64);
    out.extend_from_slice(br#"{"role":"tool","tool_call_id":""#);
    out.extend_from_slice(&call_id(turn, index)?);
    out.extend_from_slice(br#"","content":""#);
    escape(&mut out, text);
    out.extend_from_slice(br#""}"#);
    Ok(out)
}

/// The id of a call: `t`, the turn, `c`, the call, both in base 36.
fn call_id(turn: u32, index: usize) -> Result<[u8; 9]> {
    if turn >= TURNS || index >= CALLS {
        let value = format!("turn {turn}, call {index} has no tool call id");
        return Err(Error::range(value, "a turn below 1679616 and a call below 46656"));
    }
    let mut id = *b"t0000c000";
    base36(&mut id[1..5], turn as usize);
    base36(&mut id[6..], index);
    Ok(id)
}

fn base36(out: &mut [u8], mut value: usize) {
    for digit in out.iter_mut().rev() {
        *digit = b"0123456789abcdefghijklmnopqrstuvwxyz"[value % 36];
        value /= 36;
    }
}

fn name(written: &str) -> String {
    if written.is_empty() {
        return "unknown".to_owned();
    }
    let kept = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '_' };
    written.chars().take(NAME).map(kept).collect()
}

fn arguments(out: &mut Vec<u8>, written: &str) {
    // What Python calls white space: four separators more than Unicode does.
    if written.chars().all(|c| c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)) {
        out.extend_from_slice(br#""{}""#);
    } else if is_object(written) {
        quote(out, written);
    } else {
        let mut object = br#"{"malformed":"#.to_vec();
        quote(&mut object, written);
        object.push(b'}');
        quote(out, &String::from_utf8_lossy(&object));
    }
}

/// Write a JSON string.
fn quote(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    escape(out, text);
    out.push(b'"');
}

/// Write what stands between the quotes of a JSON string: only quotes, backslashes and control characters are escaped.
pub fn escape(out: &mut Vec<u8>, text: &str) {
    let mut rest = text.as_bytes();
    loop {
        let (run, special) = rest.split_at(plain(rest, 0));
        out.extend_from_slice(run);
        let Some((&first, others)) = special.split_first() else { return };
        match first {
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0x8 => out.extend_from_slice(b"\\b"),
            0xc => out.extend_from_slice(b"\\f"),
            control @ 0..=0x1f => out.extend_from_slice(format!("\\u{control:04x}").as_bytes()),
            other => out.extend_from_slice(&[b'\\', other]),
        }
        rest = others;
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::{ReplyMessage, ToolCall, assistant};
    use crate::reply::scanner::Scanner;

    fn message(json: &str) -> ReplyMessage {
        ReplyMessage::read(&mut Scanner::new(json.as_bytes()).unwrap()).unwrap()
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
        assert!(ReplyMessage::read(&mut Scanner::new(br#"{"tool_calls":[{"id":1.5}]}"#).unwrap()).is_err());
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

    fn written(content: &str, calls: &[(&str, &str)], turn: u32) -> String {
        let call = |&(name, arguments): &(&str, &str)| ToolCall {
            id: "theirs".to_owned(),
            name: name.to_owned(),
            arguments: arguments.to_owned(),
        };
        let calls: Vec<ToolCall> = calls.iter().map(call).collect();
        String::from_utf8(assistant(content, &calls, turn).unwrap()).unwrap()
    }

    #[test]
    fn text_is_escaped_no_more_than_needed() {
        let json = r#"{"role":"assistant","content":"\u0000\b\t\n\u000b\f\r\u001f \"\\/é😀"}"#;
        assert_eq!(written("\0\u{8}\t\n\u{b}\u{c}\r\u{1f} \"\\/\u{7f}é😀", &[], 0), json.replace("/é", "/\u{7f}é"));
        assert_eq!(written("", &[], 0), r#"{"role":"assistant","content":""}"#);
    }

    #[test]
    fn calls_are_made_acceptable() {
        let calls = [("search", r#"{"q": "a"}"#), ("wéb search!", "not json"), ("", " \u{1c}")];
        let json = concat!(
            r#"{"role":"assistant","content":null,"tool_calls":["#,
            r#"{"id":"t0010c000","type":"function","function":{"name":"search","arguments":"{\"q\": \"a\"}"}},"#,
            r#"{"id":"t0010c001","type":"function","function":{"name":"w_b_search_","arguments":"{\"malformed\":\"not json\"}"}},"#,
            r#"{"id":"t0010c002","type":"function","function":{"name":"unknown","arguments":"{}"}}]}"#,
        );
        assert_eq!(written("", &calls, 36), json);
        assert!(written("x", &calls, 36).contains(r#""content":"x","#));
        let long = "é".repeat(3) + &"a".repeat(70);
        assert!(written("", &[(&long, "{}")], 0).contains(&format!(r#""name":"___{}","#, "a".repeat(61))));
    }

    #[test]
    fn ids_run_out() {
        let call = [ToolCall { id: String::new(), name: "f".to_owned(), arguments: String::new() }];
        assert!(String::from_utf8_lossy(&assistant("", &call, 36u32.pow(4) - 1).unwrap()).contains("tzzzzc000"));
        assert!(assistant("", &call, 36u32.pow(4)).unwrap_err().to_string().contains("turn 1679616, call 0"));
        assert!(assistant("text", &[], u32::MAX).is_ok());
    }
}
