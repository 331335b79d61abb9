//! Tokens that end the turns of a chat.

use std::ops::Range;

use super::notes::Stop;
use super::tokens::TokenRow;
use crate::tokenizer::{Conversation, Specials, Tokenizer};

/// Sees to it that each answer ends in a token at which generation stops, as far as it can: where the template writes none, the
/// token that begins the next turn, if it is one, or one put behind the row. What a template marks is left as it is.
pub(super) fn learn_stops(
    row: &mut TokenRow,
    ends: &[usize],
    text: &str,
    spans: &[Range<usize>],
    conversation: &Conversation<'_>,
    tokenizer: &Tokenizer,
) -> Vec<Stop> {
    let stop_ids = tokenizer.stop_ids();
    let is_written = |id: u32| tokenizer.is_special(id) || stop_ids.contains(&id);
    let mut stops = Vec::with_capacity(spans.len());
    for span in spans {
        let behind = ends.partition_point(|end| *end <= span.end);
        let is_blank = |at: usize| {
            let start = if at == 0 { 0 } else { ends[at - 1] };
            text.get(start..ends[at]).is_some_and(|text| text.trim().is_empty())
        };
        let last = (0..behind).rev().find(|at| is_written(row.ids[*at]) || !is_blank(*at));
        stops.push(match last {
            Some(last) if is_written(row.ids[last]) && ends[last] > span.start => Stop::Written,
            _ if conversation.is_marked() => Stop::Nothing,
            _ if behind < ends.len() && stop_ids.contains(&row.ids[behind]) => {
                row.labels[behind] = row.ids[behind];
                Stop::NextTurn(row.ids[behind])
            }
            _ if behind == ends.len() => match next_turn(text, conversation, tokenizer, &stop_ids) {
                Some(stop) => {
                    row.ids.push(stop);
                    row.labels.push(stop);
                    Stop::Appended(stop)
                }
                None => Stop::Nothing,
            },
            _ => Stop::Nothing,
        });
    }
    stops
}

/// Ending that the last answer would have: the token that begins the next turn where generation stops at it, else the
/// end of a document.
fn next_turn(text: &str, conversation: &Conversation<'_>, tokenizer: &Tokenizer, stop_ids: &[u32]) -> Option<u32> {
    let continued = conversation.render_continued().ok();
    let behind = continued.and_then(|continued| Some(continued.text.strip_prefix(text)?.to_owned()));
    let first = behind.and_then(|behind| tokenizer.encode(&behind, Specials::Omit).ok()?.ids.first().copied());
    first.filter(|id| stop_ids.contains(id)).or_else(|| tokenizer.eos_id())
}
