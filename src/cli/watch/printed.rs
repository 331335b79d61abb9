//! What tools print of a training beside its steps: the settings that they really train with, and that they went on otherwise than
//! asked.

use crate::cli::secrets::hidden;

/// A number that transformers' Trainer prints before it begins, and LLaMA-Factory and axolotl with it.
const SETTINGS: [(&str, PrintedSetting); 4] = [
    ("Instantaneous batch size per device", PrintedSetting::MicroBatch),
    ("Gradient Accumulation steps", PrintedSetting::Accumulation),
    ("Total train batch size", PrintedSetting::GlobalBatch),
    ("Total optimization steps", PrintedSetting::Steps),
];

/// Settings that a tool prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PrintedSetting {
    MicroBatch,
    Accumulation,
    GlobalBatch,
    Steps,
}

impl PrintedSetting {
    /// Name in messages.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::MicroBatch => "micro-batch",
            Self::Accumulation => "gradient accumulation",
            Self::GlobalBatch => "rows of a step",
            Self::Steps => "steps",
        }
    }
}

/// Message of a library that something else runs than was asked for: words that it holds, and what that means.
struct Message {
    /// Parts that stand in it in this order.
    parts: &'static [&'static str],
    means: &'static str,
}

/// Words of transformers, unsloth, torch and bitsandbytes, as of late 2026: of each line the first that it has.
const MESSAGES: [Message; 8] = [
    Message {
        parts: &["alling back to its reference PyTorch implementation"],
        means: "the fast kernels of these layers are not installed",
    },
    Message {
        parts: &["alling back to", "attention"],
        means: "another attention runs than was asked for",
    },
    Message {
        parts: &["lash", "ttention", "not installed"],
        means: "flash attention is not installed",
    },
    Message {
        parts: &["lash", "ttention", "is not available"],
        means: "flash attention cannot be used",
    },
    Message {
        parts: &["Unsloth", "performance hit"],
        means: "unsloth's fast kernels do not run for this setting",
    },
    Message {
        parts: &["orch._dynamo hit config."],
        means: "the compiler gave up: shapes differ from step to step",
    },
    Message {
        parts: &["does not support bfloat16"],
        means: "the device computes bf16 in another way",
    },
    Message {
        parts: &["fast path is not available"],
        means: "the fast kernels of these layers are not installed",
    },
];

/// Words of programs that had no more memory.
const OUT_OF_MEMORY: [&str; 5] = [
    "OutOfMemoryError",
    "CUDA out of memory",
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "Cannot allocate memory",
];

/// Something that a line tells.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Told {
    Setting(PrintedSetting, u64),
    /// The line, and what it means.
    Fallback(&'static str, String),
    OutOfMemory(String),
}

/// Columns of a line that is shown.
const SHOWN: usize = 200;

/// What a line tells beside steps.
pub(super) fn read(line: &str) -> Option<Told> {
    // A line of code in a traceback tells what would be done, and not what happened.
    if line.trim_start().starts_with("except ") {
        return None;
    }
    let shown = || hidden(line.trim()).chars().take(SHOWN).collect::<String>();
    if OUT_OF_MEMORY.iter().any(|words| line.contains(words)) {
        return Some(Told::OutOfMemory(shown()));
    }
    if let Some((name, value)) = line.rsplit_once('=')
        && let Some((_, setting)) = SETTINGS.iter().find(|(words, _)| name.contains(words))
    {
        let digits: String = value
            .trim()
            .chars()
            .take_while(|c| c.is_ascii_digit() || *c == ',')
            .collect();
        return Some(Told::Setting(*setting, digits.replace(',', "").parse().ok()?));
    }
    let message = MESSAGES.iter().find(|message| message.is_in(line))?;
    Some(Told::Fallback(message.means, shown()))
}

impl Message {
    fn is_in(&self, line: &str) -> bool {
        let mut rest = line;
        self.parts.iter().all(|part| match rest.split_once(part) {
            Some((_, behind)) => {
                rest = behind;
                true
            }
            None => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_from_the_trainers_heading() {
        for (line, setting, value) in [
            (
                "[INFO|trainer.py:2519] >>   Instantaneous batch size per device = 2",
                PrintedSetting::MicroBatch,
                2,
            ),
            (
                "  Total train batch size (w. parallel, distributed & accumulation) = 16",
                PrintedSetting::GlobalBatch,
                16,
            ),
            ("  Gradient Accumulation steps = 8", PrintedSetting::Accumulation, 8),
            ("  Total optimization steps = 1,000", PrintedSetting::Steps, 1000),
        ] {
            assert_eq!(read(line), Some(Told::Setting(setting, value)), "{line}");
        }
    }

    #[test]
    fn what_went_otherwise_is_told_with_its_line() {
        let flash = "FlashAttention2 has been toggled on, but flash attention is not installed. Falling back to eager attention";
        assert!(matches!(read(flash), Some(Told::Fallback(_, line)) if line == flash));
        for (line, means) in [
            (
                "`chunk_rule` is falling back to its reference PyTorch implementation because `flash-linear-attention` is not installed.",
                "the fast kernels of these layers are not installed",
            ),
            (
                "W1201 torch._dynamo hit config.recompile_limit (8)",
                "the compiler gave up: shapes differ from step to step",
            ),
            (
                "This model is compatible with the following flash attention implementations: `['a']`. Automatically falling back to \
                 `flash_attention_2` instead of `flash_attention_3`.",
                "another attention runs than was asked for",
            ),
        ] {
            assert_eq!(read(line), Some(Told::Fallback(means, line.to_owned())), "{line}");
        }
        let memory = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.";
        assert_eq!(read(memory), Some(Told::OutOfMemory(memory.to_owned())));
        let secret = "sh: --hub_token hf_abcdef: Cannot allocate memory";
        let shown = "sh: --hub_token (left out) Cannot allocate memory";
        assert_eq!(read(secret), Some(Told::OutOfMemory(shown.to_owned())));
        for line in [
            "",
            "loss = 2",
            "all is well",
            "Num examples = many",
            "Total optimization steps = many",
            "    except torch.cuda.OutOfMemoryError as error:",
        ] {
            assert_eq!(read(line), None, "{line}");
        }
    }
}
