//! The `{% generation %}` blocks of chat templates, which mark what the model is to generate.
//!
//! transformers brings a Jinja extension for them. Here each tag is rewritten, before compiling, into ordinary Jinja
//! that prints a marker character; after rendering the markers are taken out and their places kept. Both markers are
//! Unicode noncharacters, which no text may hold. Each tag becomes a block tag on either side of the marker, so that
//! white space is trimmed exactly as around the original.

use std::ops::Range;

const START: char = '\u{fdd0}';
const END: char = '\u{fdd1}';

/// Rewrites the tags of `template`; `None` where there are none.
pub(super) fn rewrite(template: &str) -> Option<String> {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    let mut found = false;
    while let Some(open) = rest.find("{%") {
        let Some(length) = rest[open..].find("%}") else { break };
        let (tag, after) = (&rest[open..open + length + 2], open + length + 2);
        out.push_str(&rest[..open]);
        match replacement(tag) {
            Some(text) => {
                found = true;
                out.push_str(&text);
            }
            None => out.push_str(tag),
        }
        rest = &rest[after..];
    }
    out.push_str(rest);
    found.then_some(out)
}

/// Replacement of one `{% ... %}` tag, if it is one of ours.
fn replacement(tag: &str) -> Option<String> {
    let inner = tag.strip_prefix("{%")?.strip_suffix("%}")?;
    let left = if inner.starts_with(['-', '+']) { &inner[..1] } else { "" };
    let right = if inner.len() > left.len() && inner.ends_with(['-', '+']) {
        &inner[inner.len() - 1..]
    } else {
        ""
    };
    let (marker, before, behind) = match inner[left.len()..inner.len() - right.len()].trim() {
        "generation" => (START, "if true", "if true"),
        "endgeneration" => (END, "endif", "endif"),
        _ => return None,
    };
    Some(format!(
        "{{%{left} {before} %}}{{{{ '{marker}' }}}}{{% {behind} {right}%}}"
    ))
}

/// The first marker character in `text`, as a code point.
pub(super) fn reserved_in(text: &str) -> Option<u32> {
    text.chars().find(|c| [START, END].contains(c)).map(u32::from)
}

/// Takes the markers out of rendered text and returns the byte ranges that they enclosed.
pub(super) fn take_markers(rendered: &str) -> (String, Vec<Range<usize>>) {
    let mut text = String::with_capacity(rendered.len());
    let (mut ranges, mut start) = (Vec::new(), None);
    for character in rendered.chars() {
        match character {
            START => start = start.or(Some(text.len())),
            END => ranges.extend(start.take().map(|start| start..text.len())),
            other => text.push(other),
        }
    }
    (text, ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_without_the_tags_is_left_alone() {
        assert_eq!(rewrite("{% if generation %}x{% endif %}{%"), None);
    }

    #[test]
    fn white_space_control_is_kept() {
        let rewritten = rewrite("a {%- generation -%} b {% endgeneration %} c").unwrap();
        let expected = "a {%- if true %}{{ '\u{fdd0}' }}{% if true -%} b {% endif %}{{ '\u{fdd1}' }}{% endif %} c";
        assert_eq!(rewritten, expected);
    }

    #[test]
    fn markers_become_ranges() {
        let (text, ranges) = take_markers("é\u{fdd0}bc\u{fdd1}d\u{fdd0}\u{fdd1}");
        assert_eq!((text.as_str(), ranges), ("ébcd", vec![2..4, 5..5]));
    }
}
