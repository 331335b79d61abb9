//! An error as one line of text.

use std::error::Error;

/// The message of `error`, and behind it those of its causes that it does not quote itself.
pub fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    for cause in std::iter::successors(error.source(), |cause| (*cause).source()) {
        let message = cause.to_string();
        if !text.contains(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum Layer {
        #[error("the disk is full")]
        Disk,
        #[error("cannot write step 3")]
        Plain { source: Box<Layer> },
        #[error("cannot save: {source}")]
        Quoting { source: Box<Layer> },
    }

    #[test]
    fn every_cause_stands_once() {
        let plain = Layer::Plain {
            source: Box::new(Layer::Disk),
        };
        assert_eq!(with_causes(&plain), "cannot write step 3: the disk is full");
        let quoting = Layer::Quoting {
            source: Box::new(plain),
        };
        assert_eq!(
            with_causes(&quoting),
            "cannot save: cannot write step 3: the disk is full"
        );
    }
}
