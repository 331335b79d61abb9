//! Lines of what a command prints, however its pieces come: a bar that is drawn again ends in a carriage return.

/// Longest line that is read; of longer ones the beginning.
const LONGEST: usize = 16 << 10;

/// Puts lines together.
#[derive(Debug, Default)]
pub(super) struct OutputLines {
    line: Vec<u8>,
}

impl OutputLines {
    /// Takes the next bytes, and tells every line that ends in them.
    pub(super) fn take(&mut self, mut bytes: &[u8], mut line: impl FnMut(&str)) {
        while let Some(end) = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            self.add(&bytes[..end]);
            if !self.line.is_empty() {
                line(&String::from_utf8_lossy(&self.line));
                self.line.clear();
            }
            bytes = &bytes[end + 1..];
        }
        self.add(bytes);
    }

    /// Tells what is left without an end. A bar that is drawn over is such a line for as long as it shows.
    pub(super) fn unfinished(&self) -> Option<String> {
        (!self.line.is_empty()).then(|| String::from_utf8_lossy(&self.line).into_owned())
    }

    fn add(&mut self, bytes: &[u8]) {
        let room = LONGEST.saturating_sub(self.line.len());
        self.line.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pieces: &[&[u8]]) -> (Vec<String>, Option<String>) {
        let (mut lines, mut found) = (OutputLines::default(), Vec::new());
        for piece in pieces {
            lines.take(piece, |line| found.push(line.to_owned()));
        }
        (found, lines.unfinished())
    }

    #[test]
    fn lines_are_whole_however_their_pieces_come() {
        let (found, left) = lines(&[b"a", b"b\r\nc\rd\n\n", b"\re", b"f"]);
        assert_eq!(found, ["ab", "c", "d"]);
        assert_eq!(left.as_deref(), Some("ef"));
    }

    #[test]
    fn a_line_without_end_and_bytes_that_are_no_text_do_no_harm() {
        let long = vec![b'x'; 3 * LONGEST];
        let (found, _) = lines(&[&long, b"\n\xff\xfe\n"]);
        assert_eq!(found[0].len(), LONGEST);
        assert_eq!(found.len(), 2);
    }
}
