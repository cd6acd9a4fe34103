//! A model's turn as it is sent again: the canonical assistant message.

use super::message::ToolCall;
use super::scanner::is_object;
use crate::error::{Error, Result};

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

/// The id of a call: `t`, the turn, `c`, the call, both in base 36.
fn call_id(turn: u32, index: usize) -> Result<[u8; 9]> {
    if turn >= TURNS || index >= CALLS {
        let value = format!("turn {turn}, call {index} has no tool call id");
        return Err(Error::Value { value, want: "a turn below 1679616 and a call below 46656" });
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
    while let Some(plain) = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f)) {
        let (run, special) = rest.split_at(plain);
        out.extend_from_slice(run);
        match special[0] {
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0x8 => out.extend_from_slice(b"\\b"),
            0xc => out.extend_from_slice(b"\\f"),
            control @ 0..=0x1f => out.extend_from_slice(format!("\\u{control:04x}").as_bytes()),
            other => out.extend_from_slice(&[b'\\', other]),
        }
        rest = &special[1..];
    }
    out.extend_from_slice(rest);
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use super::{ToolCall, assistant};

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
