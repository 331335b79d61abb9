//! [`on_one_line`]: a text of a file as messages show it.

/// Letters of a text that are shown.
const SHOWN: usize = 60;

/// The words of a text on one line, shortened.
pub(crate) fn on_one_line(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_one_line_of_its_first_letters() {
        assert_eq!(on_one_line("a\n  b"), "a b");
        assert_eq!(on_one_line(&"é".repeat(SHOWN)), "é".repeat(SHOWN));
        assert_eq!(on_one_line(&"é".repeat(SHOWN + 1)), "é".repeat(SHOWN) + "…");
    }
}
