//! [`Blocks`]: what of a shell's script runs once and in its turn.

/// A part of a script that begins and ends with words or signs of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Block {
    /// Commands that run where they are called.
    Function,
    /// Commands in braces.
    Group,
    /// Commands in braces that run by the outcome of a command.
    JoinedGroup,
    /// Commands in brackets, whose variables are their own.
    Subshell,
    /// Commands behind patterns.
    Case,
    /// Lines that a command is given, which may be commands of another shell.
    Document,
    /// Commands of `if` or of a loop.
    Branch,
    /// Commands of a file.
    File,
    /// Commands of a file that run by the outcome of a command.
    JoinedFile,
}

impl Block {
    /// Whether its commands run once, and for all that come behind it.
    fn is_certain(self) -> bool {
        matches!(self, Self::Group | Self::File)
    }
}

/// The blocks around a command.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    open: Vec<Block>,
    /// Blocks that may run never, or several times, or change nothing outside.
    uncertain: usize,
    functions: usize,
}

impl Blocks {
    pub(super) fn open(&mut self, block: Block) {
        self.open.push(block);
        self.uncertain += usize::from(!block.is_certain());
        self.functions += usize::from(block == Block::Function);
    }

    /// Ends the innermost block, where this word or sign ends such a one.
    pub(super) fn close(&mut self, word: &str) {
        self.close_if(|block| match block {
            Block::Function | Block::Group | Block::JoinedGroup => word == "}",
            Block::Subshell => word == ")",
            Block::Case => word == "esac",
            Block::Branch => ["fi", "done"].contains(&word),
            Block::Document | Block::File | Block::JoinedFile => false,
        });
    }

    /// Ends the innermost document, with all that was begun in it.
    pub(super) fn close_document(&mut self) {
        while let Some(block) = self.close_if(|_| true) {
            if block == Block::Document {
                return;
            }
        }
    }

    /// Ends the innermost blocks, so that as many are left.
    pub(super) fn close_to(&mut self, left: usize) {
        while self.open.len() > left {
            self.close_if(|_| true);
        }
    }

    /// How many blocks there are.
    pub(super) fn count(&self) -> usize {
        self.open.len()
    }

    fn close_if(&mut self, ends: impl FnOnce(Block) -> bool) -> Option<Block> {
        let block = self.open.pop_if(|block| ends(*block))?;
        self.uncertain -= usize::from(!block.is_certain());
        self.functions -= usize::from(block == Block::Function);
        Some(block)
    }

    /// Whether the innermost block is of this kind.
    pub(super) fn are_in(&self, block: Block) -> bool {
        self.open.last() == Some(&block)
    }

    /// Whether commands run once, in their turn, and for all that come behind them.
    pub(super) fn are_certain(&self) -> bool {
        self.uncertain == 0
    }

    /// Whether commands run where a function is called.
    pub(super) fn are_called(&self) -> bool {
        self.functions > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_end_with_words_of_their_own() {
        let mut blocks = Blocks::default();
        blocks.open(Block::Group);
        assert!(blocks.are_certain() && !blocks.are_called());
        blocks.open(Block::Function);
        blocks.open(Block::Branch);
        blocks.close("}");
        assert!(blocks.are_in(Block::Branch) && blocks.are_called());
        blocks.close("fi");
        blocks.close("}");
        assert!(blocks.are_certain() && blocks.are_in(Block::Group));
        blocks.close("}");
        blocks.close(")");
        assert!(blocks.are_certain() && !blocks.are_in(Block::Group));
    }

    #[test]
    fn what_a_document_begins_ends_with_it() {
        let mut blocks = Blocks::default();
        blocks.open(Block::Group);
        blocks.open(Block::Document);
        blocks.open(Block::Branch);
        blocks.close("}");
        blocks.close_document();
        assert!(blocks.are_certain() && blocks.are_in(Block::Group));
    }

    #[test]
    fn what_a_file_begins_ends_with_it() {
        let mut blocks = Blocks::default();
        blocks.open(Block::Group);
        blocks.open(Block::File);
        blocks.close("}");
        assert!(blocks.are_certain() && blocks.count() == 2);
        blocks.open(Block::Function);
        blocks.open(Block::Branch);
        blocks.close_to(1);
        assert!(blocks.are_certain() && !blocks.are_called() && blocks.are_in(Block::Group));
        blocks.open(Block::JoinedFile);
        assert!(!blocks.are_certain());
    }
}
