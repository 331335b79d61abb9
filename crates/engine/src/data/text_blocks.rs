//! Blocks that a long text is tokenised in.

/// Text is tokenised in blocks of about this size: the tokenizer needs many times a text's size in memory.
const BLOCK_BYTES: usize = 64 * 1024;

/// Cuts a long text at ends of paragraphs, lines or words, so that hardly any tokenizer sees a difference.
pub(super) fn blocks(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (block, tail) = rest.split_at(block_end(rest));
        rest = tail;
        Some(block)
    })
}

fn block_end(text: &str) -> usize {
    if text.len() <= BLOCK_BYTES {
        return text.len();
    }
    let window = &text[..text.floor_char_boundary(BLOCK_BYTES)];
    let after = |pattern: &str| window.rfind(pattern).map(|at| at + pattern.len());
    // A word takes the space before it along, as byte-level tokenizers do.
    let before_word = || window.rfind(' ').filter(|at| *at > 0);
    after("\n\n")
        .or_else(|| after("\n"))
        .or_else(before_word)
        .unwrap_or(window.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_make_up_the_text() {
        let text = ("word ".repeat(5000) + "\n").repeat(7) + &"é".repeat(100_000);
        assert_eq!(blocks(&text).collect::<String>(), text);
        assert!(blocks(&text).all(|block| !block.is_empty() && block.len() <= BLOCK_BYTES));
    }
}
