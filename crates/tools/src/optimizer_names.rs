//! Optimizers by the names and classes that the tools have for them, beside those that files are written with.
//!
//! Sources: `OptimizerNames` of transformers 5.24 (`training_args.py`, `trainer_optimizer.py`), `CustomSupportedOptimizers` of axolotl
//! 0.19, the flags of LLaMA-Factory 0.9.5, and the classes of PyTorch, bitsandbytes and torchao that a config of torchtune can name.

use peft_tune_core::predict::stack::OptimizerForm;
use peft_tune_core::recipe::OptimizerKind;

use OptimizerKind::{
    Adafactor, AdamW, AdamW8bit, AdamWScheduleFree, Lion, Lion8bit, Muon, PagedAdamW, PagedAdamW8bit, Sgd,
};

/// Row of the table.
struct NameRow {
    names: &'static [&'static str],
    called: CalledOptimizer,
}

/// What an optimizer of a tool is here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CalledOptimizer {
    /// The optimizer that it is, or that comes nearest.
    pub kind: OptimizerKind,
    /// What it does otherwise than that one; `None` of the same arithmetic.
    pub differs: Option<OtherArithmetic>,
}

/// Arithmetic that no optimizer here has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct OtherArithmetic {
    /// Rest of a sentence that begins with the optimizer.
    pub what: &'static str,
    /// What it keeps for each trained value.
    pub keeps: OptimizerForm,
}

impl From<OptimizerKind> for CalledOptimizer {
    fn from(kind: OptimizerKind) -> Self {
        Self { kind, differs: None }
    }
}

const GALORE: &str = "projects gradients to a lower rank (GaLore), of which nothing is taken off here";
const APOLLO: &str = "scales gradients by states of a lower rank (APOLLO), of which nothing is taken off here";
const FLASH: &str = "keeps its states compressed (FlashOptim)";
const ADEMAMIX: &str = "keeps a second, slow mean of gradients (AdEMAMix)";
const RMSPROP: &str = "has no mean of gradients (RMSprop)";
const NO_PAGES: &str = "has no paged form here";
const ADAM: &str = "adds weight decay to the gradient (Adam)";
const OF_PYTORCH: &str = "is an optimizer of PyTorch that no recipe has";

const ROWS: &[NameRow] = &[
    same(
        &[
            "adamw_torch",
            "adamw_torch_xla",
            "adamw_torch_npu_fused",
            "adamw_apex_fused",
            "adamw_hf",
        ],
        AdamW,
    ),
    same(&["adamw_bnb_8bit", "adamw_torch_8bit", "ao_adamw_8bit"], AdamW8bit),
    same(&["pagedadamw", "pagedadamw32bit"], PagedAdamW),
    same(&["pagedadamw8bit"], PagedAdamW8bit),
    same(&["lion_pytorch", "lion32bit"], Lion),
    same(&["adamwschedulefree"], AdamWScheduleFree),
    other(
        &["paged_lion_32bit", "pagedlion", "pagedlion32bit"],
        Lion,
        NO_PAGES,
        paged(numbers(1)),
    ),
    other(
        &["paged_lion_8bit", "pagedlion8bit"],
        Lion8bit,
        NO_PAGES,
        paged(bytes(1)),
    ),
    other(
        &["adamw_torch_4bit", "ao_adamw_4bit", "adamw4bit"],
        AdamW8bit,
        "keeps its states in 4 bits",
        bytes(1),
    ),
    other(
        &["ao_adamw_fp8", "adamwfp8"],
        AdamW8bit,
        "keeps its states in FP8",
        bytes(2),
    ),
    other(
        &["adamw_anyprecision"],
        AdamW,
        "has a dtype of its own for each state, taken for F32",
        bytes(8),
    ),
    other(
        &["optimi_adamw"],
        AdamW,
        "compensates what weights of 16 bits round off",
        numbers(2),
    ),
    other(&["stable_adamw"], AdamW, "bounds each update (StableAdamW)", numbers(2)),
    other(
        &["adopt_adamw"],
        AdamW,
        "normalises before it takes the mean (ADOPT)",
        numbers(2),
    ),
    other(&["grokadamw"], AdamW, "filters gradients (GrokAdamW)", numbers(3)),
    other(
        &["adam_mini"],
        AdamW,
        "has one rate for each block (Adam-mini)",
        numbers(1),
    ),
    other(
        &["badam"],
        AdamW,
        "trains one block of the weights at a time (BAdam), of which nothing is taken off here",
        numbers(2),
    ),
    other(&["ademamix"], AdamW, ADEMAMIX, numbers(3)),
    other(&["ademamix_8bit", "ademamix8bit"], AdamW8bit, ADEMAMIX, bytes(3)),
    other(
        &["paged_ademamix_32bit", "pagedademamix"],
        PagedAdamW,
        ADEMAMIX,
        paged(numbers(3)),
    ),
    other(
        &["paged_ademamix_8bit", "pagedademamix8bit"],
        PagedAdamW8bit,
        ADEMAMIX,
        paged(bytes(3)),
    ),
    other(
        &["adagrad"],
        AdamW,
        "adds up the squares of gradients (Adagrad)",
        numbers(1),
    ),
    other(
        &["rmsprop", "rmsprop_bnb", "rmsprop_bnb_32bit"],
        AdamW,
        RMSPROP,
        numbers(1),
    ),
    other(&["rmsprop_bnb_8bit", "rmsprop8bit"], AdamW8bit, RMSPROP, bytes(1)),
    other(
        &["schedule_free_radam", "radamschedulefree"],
        AdamWScheduleFree,
        "warms up by itself (RAdam)",
        numbers(2),
    ),
    other(
        &["schedule_free_sgd", "sgdschedulefree"],
        Sgd,
        "averages where it was (Schedule-Free)",
        numbers(1),
    ),
    other(&["galore_adamw"], AdamW, GALORE, numbers(2)),
    other(
        &["galore_adamw_8bit", "q_galore_adamw8bit"],
        AdamW8bit,
        GALORE,
        bytes(2),
    ),
    other(&["galore_adafactor"], Adafactor, GALORE, numbers(0)),
    other(&["galore_adamw_layerwise"], AdamW, GALORE, in_backward(numbers(2))),
    other(
        &["galore_adamw_8bit_layerwise"],
        AdamW8bit,
        GALORE,
        in_backward(bytes(2)),
    ),
    other(
        &["galore_adafactor_layerwise"],
        Adafactor,
        GALORE,
        in_backward(numbers(0)),
    ),
    other(&["apollo_adamw"], AdamW, APOLLO, numbers(2)),
    other(&["apollo_adamw_layerwise"], AdamW, APOLLO, in_backward(numbers(2))),
    other(
        &["lomo"],
        Sgd,
        "updates within the backward pass (LOMO)",
        in_backward(numbers(0)),
    ),
    other(
        &["adalomo"],
        Adafactor,
        "updates within the backward pass (AdaLomo)",
        in_backward(numbers(0)),
    ),
    other(
        &["came_pytorch"],
        Adafactor,
        "weighs updates by their confidence (CAME)",
        numbers(1),
    ),
    other(
        &["dion"],
        Muon,
        "makes updates of a lower rank orthogonal (Dion)",
        numbers(1),
    ),
    other(
        &["sinkgd"],
        Sgd,
        "normalises rows and columns of gradients (SinkGD)",
        numbers(0),
    ),
    other(&["flash_adamw", "flash_adam"], AdamW8bit, FLASH, bytes(2)),
    other(&["flash_sgd", "flash_sgdw"], Sgd, FLASH, bytes(1)),
    other(&["flash_lion"], Lion8bit, FLASH, bytes(1)),
    other(&["adam", "adam32bit"], AdamW, ADAM, numbers(2)),
    other(&["adam8bit"], AdamW8bit, ADAM, bytes(2)),
    other(&["pagedadam", "pagedadam32bit"], PagedAdamW, ADAM, paged(numbers(2))),
    other(&["pagedadam8bit"], PagedAdamW8bit, ADAM, paged(bytes(2))),
    other(
        &["adadelta", "adamax", "nadam", "radam", "rprop"],
        AdamW,
        OF_PYTORCH,
        numbers(2),
    ),
    other(&["asgd"], Sgd, OF_PYTORCH, numbers(1)),
];

const fn same(names: &'static [&'static str], kind: OptimizerKind) -> NameRow {
    let called = CalledOptimizer { kind, differs: None };
    NameRow { names, called }
}

const fn other(
    names: &'static [&'static str],
    kind: OptimizerKind,
    what: &'static str,
    keeps: OptimizerForm,
) -> NameRow {
    let differs = Some(OtherArithmetic { what, keeps });
    let called = CalledOptimizer { kind, differs };
    NameRow { names, called }
}

/// States that have the parameter's dtype.
const fn numbers(states: u64) -> OptimizerForm {
    OptimizerForm {
        states,
        bytes: 0,
        is_paged: false,
        foreach: false,
        in_backward: false,
    }
}

/// States in codes of so many bytes together.
const fn bytes(bytes: u64) -> OptimizerForm {
    OptimizerForm { bytes, ..numbers(0) }
}

const fn paged(form: OptimizerForm) -> OptimizerForm {
    OptimizerForm { is_paged: true, ..form }
}

const fn in_backward(form: OptimizerForm) -> OptimizerForm {
    OptimizerForm {
        in_backward: true,
        ..form
    }
}

/// The optimizer of a name or a class, in small letters and without the class's package.
pub(super) fn named(name: &str) -> Option<CalledOptimizer> {
    let row = ROWS.iter().find(|row| row.names.contains(&name));
    row.map(|row| row.called)
}

impl OtherArithmetic {
    /// What is kept for each trained value, in words.
    pub(crate) fn kept(&self) -> String {
        let counted = |count: u64, what: &str| match count {
            1 => format!("1 {what}"),
            count => format!("{count} {what}s"),
        };
        match (self.keeps.states, self.keeps.bytes) {
            (0, 0) => "nothing".to_owned(),
            (0, bytes) => counted(bytes, "byte"),
            (states, _) => counted(states, "number"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::optimizer_called;
    use super::*;

    /// `OptimizerNames` of transformers 5.24.
    const OF_TRANSFORMERS: &str = "adamw_torch adamw_torch_fused adamw_torch_xla adamw_torch_npu_fused adamw_apex_fused adafactor \
        adamw_anyprecision adamw_torch_4bit adamw_torch_8bit ademamix sgd adagrad adamw_bnb_8bit adamw_8bit ademamix_8bit lion_8bit \
        lion_32bit paged_adamw_32bit paged_adamw_8bit paged_ademamix_32bit paged_ademamix_8bit paged_lion_32bit paged_lion_8bit rmsprop \
        rmsprop_bnb rmsprop_bnb_8bit rmsprop_bnb_32bit galore_adamw galore_adamw_8bit galore_adafactor galore_adamw_layerwise \
        galore_adamw_8bit_layerwise galore_adafactor_layerwise lomo adalomo grokadamw schedule_free_radam schedule_free_adamw \
        schedule_free_sgd apollo_adamw apollo_adamw_layerwise stable_adamw";
    /// `CustomSupportedOptimizers` of axolotl 0.19.
    const OF_AXOLOTL: &str = "optimi_adamw ao_adamw_4bit ao_adamw_8bit ao_adamw_fp8 adopt_adamw came_pytorch muon dion sinkgd flash_adamw \
        flash_adam flash_sgd flash_sgdw flash_lion q_galore_adamw8bit";
    /// Classes that a config of torchtune can name.
    const CLASSES: &str = "torch.optim.AdamW torch.optim.Adam torch.optim.SGD torch.optim.Adagrad torch.optim.RMSprop torch.optim.Adafactor \
        torch.optim.Muon bitsandbytes.optim.AdamW8bit bitsandbytes.optim.PagedAdamW bitsandbytes.optim.PagedAdamW8bit \
        bitsandbytes.optim.Lion bitsandbytes.optim.Lion8bit bitsandbytes.optim.Adam8bit torchao.optim.AdamW8bit \
        torchao.prototype.low_bit_optim.AdamW4bit torchao.prototype.low_bit_optim.AdamWFp8";

    #[test]
    fn every_name_of_the_tools_is_an_optimizer_here_or_differs_by_name() {
        let all = [OF_TRANSFORMERS, OF_AXOLOTL, CLASSES]
            .into_iter()
            .flat_map(str::split_whitespace);
        for name in all {
            assert!(optimizer_called(name).is_some(), "{name}");
        }
        assert_eq!(optimizer_called("warp_drive"), None);
    }

    #[test]
    fn a_name_stands_in_one_row_and_is_written_as_it_is_looked_up() {
        let mut seen = BTreeSet::new();
        for name in ROWS.iter().flat_map(|row| row.names) {
            assert!(seen.insert(*name), "{name} stands twice");
            assert_eq!(*name, name.to_lowercase());
            // A recipe's own names are looked up first.
            assert_eq!(OptimizerKind::from_name(name), None, "{name}");
        }
    }

    #[test]
    fn names_with_the_same_arithmetic_are_that_optimizer_and_others_keep_what_is_their_own() {
        for (name, kind, kept) in [
            ("adamw_torch", AdamW, None),
            ("adamw_torch_fused", AdamW, None),
            ("adamw_torch_xla", AdamW, None),
            ("adamw_8bit", AdamW8bit, None),
            ("paged_adamw_8bit", PagedAdamW8bit, None),
            ("lion_32bit", Lion, None),
            ("lion_8bit", Lion8bit, None),
            ("sgd", Sgd, None),
            ("adafactor", Adafactor, None),
            ("ADAMW_BNB_8BIT", AdamW8bit, None),
            ("adamw_torch_8bit", AdamW8bit, None),
            ("torchao.optim.AdamW8bit", AdamW8bit, None),
            ("paged_adamw_32bit", PagedAdamW, None),
            ("schedule_free_adamw", AdamWScheduleFree, None),
            ("adamw_torch_4bit", AdamW8bit, Some("1 byte")),
            ("rmsprop", AdamW, Some("1 number")),
            ("lomo", Sgd, Some("nothing")),
            ("grokadamw", AdamW, Some("3 numbers")),
        ] {
            let called = optimizer_called(name).unwrap();
            let found = called.differs.map(|differs| differs.kept());
            assert_eq!((called.kind, found.as_deref()), (kind, kept), "{name}");
        }
    }
}
