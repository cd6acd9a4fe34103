//! What the usage of a reply counts: all of its choices, or the first of several alone, as llama.cpp does.

use super::scanner::Scanner;
use super::usage::detail;
use super::{ParsedChoice, ParsedReply, ReplyOptions, ReplyResult};
use crate::storage::tokens::TRUNCATED;

/// Finish reasons of a choice that ended by itself, or that says more than that it was cut off.
const KNOWN: [&str; 9] =
    ["stop", "tool_calls", "function_call", "content_filter", "length", "repetition", "abort", "aborted", "error"];

/// The figure `predicted_n` of llama.cpp's `timings`, which is that of the first choice.
pub fn predicted(scan: &mut Scanner<'_>) -> ReplyResult<Option<u32>> {
    detail(scan, "predicted_n")
}

/// Count the tokens of each choice where usage is of the first alone, drop ids that are fewer than tokens, and find choices
/// that were cut off without a word.
pub fn settle(reply: &mut ParsedReply, predicted: Option<u32>, options: &ReplyOptions) {
    let told = reply.counts.generated;
    if let Some(told) = told.filter(|&told| is_of_first(&reply.choices, told, predicted)) {
        let each = each(&reply.choices, told);
        reply.estimated = sum(each.iter().filter(|(_, exact)| !exact).map(|&(count, _)| count));
        let counts = each.into_iter().map(|(count, _)| count).collect::<Vec<_>>();
        reply.counts.generated = Some(sum(counts.iter().copied()));
        reply.each = Some(counts);
    }
    let listed = reply.choices.iter().map(ParsedChoice::listed_tokens).collect::<Option<Vec<_>>>();
    let complete = told.is_some() && told == listed.map(sum);
    for choice in reply.choices.iter_mut().filter(|choice| choice.by_entry && !complete) {
        choice.tokens = None;
    }
    if let Some(most) = options.max_tokens {
        cut_off(&mut reply.choices, told, most);
    }
}

/// Whether usage cannot be that of all choices, but can be that of the first.
fn is_of_first(choices: &[ParsedChoice], told: u32, predicted: Option<u32>) -> bool {
    let [first, others @ ..] = choices else { return false };
    if others.is_empty() {
        return false;
    }
    let beyond = sum(others.iter().map(least));
    predicted == Some(told) || (least(first) <= told && told < least(first).saturating_add(beyond))
}

/// Tokens that a choice has at least: those that are listed, else its words, as no token is part of two.
fn least(choice: &ParsedChoice) -> u32 {
    let words = |text: &str| text.split_ascii_whitespace().count();
    choice
        .listed_tokens()
        .unwrap_or_else(|| {
            let message = &choice.message;
            let calls = message.tool_calls.iter().map(|call| 1 + words(&call.arguments)).sum::<usize>();
            let thought = message.reasoning.as_deref().map_or(0, words);
            u32::try_from(words(message.text()) + thought + calls).unwrap_or(u32::MAX)
        })
        .max(1)
}

/// Tokens of each choice, and whether that is exact: of the first as told, of the others those that are listed, if those
/// of the first are all listed, else by how much longer or shorter they are.
fn each(choices: &[ParsedChoice], told: u32) -> Vec<(u32, bool)> {
    let first = choices.first().map_or(1, length);
    let listed = choices.first().and_then(ParsedChoice::listed_tokens) == Some(told);
    let share = |(place, choice): (usize, &ParsedChoice)| {
        let own = length(choice);
        // No model needs more tokens than bytes, but for what is not shown.
        let most = own.max(told.into());
        let share = (u64::from(told) * own + first / 2) / first;
        match choice.listed_tokens() {
            _ if place == 0 => (told, true),
            // A character of several tokens may be one entry.
            Some(count) if listed && (!choice.by_entry || is_ascii(choice)) => (count, true),
            _ => (u32::try_from(share.clamp(1, most.max(1))).unwrap_or(u32::MAX), false),
        }
    };
    choices.iter().enumerate().map(share).collect()
}

fn is_ascii(choice: &ParsedChoice) -> bool {
    let message = &choice.message;
    let thought = message.reasoning.as_deref().is_none_or(str::is_ascii);
    thought && message.text().is_ascii() && message.tool_calls.iter().all(|call| call.arguments.is_ascii())
}

/// How long what a choice says is, in bytes; 1 where it says nothing.
fn length(choice: &ParsedChoice) -> u64 {
    let message = &choice.message;
    let calls = message.tool_calls.iter().map(|call| call.name.len() + call.arguments.len()).sum::<usize>();
    (message.text().len() + message.reasoning.as_deref().map_or(0, str::len) + calls).max(1) as u64
}

/// Mark choices that have as many tokens as they may and are not said to have ended by themselves.
fn cut_off(choices: &mut [ParsedChoice], told: Option<u32>, most: u32) {
    let alone = choices.len() == 1;
    let all = told.is_some() && told.map(u64::from) == (choices.len() as u64).checked_mul(most.into());
    for choice in choices.iter_mut().filter(|choice| !KNOWN.contains(&&*choice.finish)) {
        let generated = if alone { told } else { choice.listed_tokens() };
        if all || generated == Some(most) {
            "length".clone_into(&mut choice.finish);
            if let Some(last) = choice.tokens.as_mut().and_then(|tokens| tokens.flags.last_mut()) {
                *last |= TRUNCATED;
            }
        }
    }
}

fn sum(counts: impl IntoIterator<Item = u32>) -> u32 {
    counts.into_iter().fold(0, u32::saturating_add)
}
