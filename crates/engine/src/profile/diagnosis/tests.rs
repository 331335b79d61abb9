//! Every rule on a profile that triggers it; the sound profile triggers none.

use std::path::Path;

use super::*;
use crate::profile::fixtures::sound_profile;
use crate::profile::{
    AdapterCost, DataWaits, DeviceSample, EvaluationCost, MemoryPart, OpTime, PhaseTime, PreparingThread, Profile,
};
use peft_tune_core::architecture::Architecture;
use peft_tune_core::predict;
use peft_tune_core::predict::{Machine, Predictor, RowLengths, Setting};
use peft_tune_core::recipe::{Checkpointing, DataSettings, OptimizerKind, Precision, Recipe};

/// A profile with its recipe and what else is known.
pub(super) struct Case {
    pub(super) profile: Profile,
    pub(super) recipe: Recipe,
    faster_type: Option<FasterType>,
    losses: Vec<RankLoss>,
}

impl Case {
    pub(super) fn sound() -> Self {
        Self {
            profile: sound_profile(),
            recipe: Recipe::new("model", DataSettings::default()),
            faster_type: None,
            losses: Vec::new(),
        }
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        self.findings_with(&())
    }

    pub(super) fn findings_with(&self, oracle: &dyn Oracle) -> Vec<Finding> {
        diagnose(&Evidence {
            profile: &self.profile,
            recipe: &self.recipe,
            oracle,
            faster_type: self.faster_type,
            losses_by_rank: &self.losses,
        })
    }

    pub(super) fn finds(&self, rule: Rule) -> Finding {
        let findings = self.findings();
        let found = findings.iter().find(|finding| finding.rule == rule);
        found
            .unwrap_or_else(|| panic!("{rule:?} is not among {findings:?}"))
            .clone()
    }

    pub(super) fn misses(&self, rule: Rule) {
        let findings = self.findings();
        assert!(findings.iter().all(|finding| finding.rule != rule), "{findings:?}");
    }

    pub(super) fn phase(&mut self, name: &str) -> &mut PhaseTime {
        self.profile
            .phases
            .iter_mut()
            .find(|phase| phase.phase == name)
            .unwrap()
    }

    fn peak(&mut self, parts: &[(&str, u64)]) {
        self.profile.memory.peak_bytes = parts.iter().map(|(_, bytes)| bytes).sum();
        let part = |(part, bytes): &(&str, u64)| MemoryPart {
            part: (*part).to_owned(),
            bytes: *bytes,
        };
        self.profile.memory.parts = parts.iter().map(part).collect();
    }

    pub(super) fn samples(&mut self, sample: impl Fn(usize) -> DeviceSample) {
        self.profile.samples = (0..20).map(sample).collect();
    }
}

/// A device that multiplies bf16 so many times as fast as another type.
fn faster(times: f64) -> Option<FasterType> {
    let precision = Precision::Bf16;
    Some(FasterType { precision, times })
}

#[test]
fn a_sound_profile_needs_no_change() {
    assert_eq!(Case::sound().findings(), []);
}

#[test]
fn waiting_for_data_is_data_bound() {
    let mut case = Case::sound();
    case.phase("data").share = 0.2;
    let finding = case.finds(Rule::DataBound);
    assert_eq!(finding.change, Change::Threads(1));
    assert!((finding.gain.unwrap().value - 0.2512).abs() < 0.01, "{finding:?}");
    case.profile.setting.threads = 1;
    // A profile from before anybody told.
    case.profile.data.waits = None;
    assert!(matches!(case.finds(Rule::DataBound).change, Change::Advice(_)));
    let waits = |prefetch_depth, preparing_s| {
        Some(DataWaits {
            prefetch_depth,
            preparing_s,
            ..DataWaits::default()
        })
    };
    // What no thread prepares ahead.
    case.profile.data.waits = waits(0, 0.01);
    assert_eq!(case.finds(Rule::DataBound).change, Change::PrefetchDepth(2));
    // Single steps come late from a thread that keeps up.
    case.profile.data.waits = waits(2, 0.1 * case.profile.steps.step_s);
    let late = case.finds(Rule::DataBound);
    assert_eq!(late.change, Change::PrefetchDepth(8));
    assert!(late.evidence.contains("2 steps ahead"), "{}", late.evidence);
    case.profile.data.waits = waits(2, case.profile.steps.step_s);
    assert!(matches!(case.finds(Rule::DataBound).change, Change::Advice(_)));
    // A thread that computes, one that a disk keeps waiting, and one that waits for something else.
    for (processor_s, read_bytes, text) in [
        (0.9, 0.0, "computes in 90% of that"),
        (0.2, 64e6, "waits in 80% of that, and a disk reads 61"),
        (0.2, 0.0, "waits in 80% of that, and a disk reads next to nothing"),
    ] {
        let mut told = waits(2, case.profile.steps.step_s).unwrap();
        told.thread = Some(PreparingThread {
            processor_s: processor_s * told.preparing_s,
            read_bytes,
        });
        case.profile.data.waits = Some(told);
        let finding = case.finds(Rule::DataBound);
        assert!(finding.evidence.contains(text), "{}", finding.evidence);
        let says_disk = matches!(&finding.change, Change::Advice(advice) if advice.contains("a disk that is too slow"));
        assert_eq!(says_disk, read_bytes > 0.0, "{finding:?}");
    }
    case.phase("data").share = 0.03;
    case.misses(Rule::DataBound);
}

#[test]
fn rows_that_fill_little_should_be_packed() {
    let mut case = Case::sound();
    case.profile.data.mean_tokens_per_row = 60.0;
    let finding = case.finds(Rule::ShortRows);
    assert_eq!(finding.change, Change::Packing);
    assert!(
        finding.evidence.contains("23% of sequence_length 256"),
        "{}",
        finding.evidence
    );
    case.profile.setting.packing = true;
    case.misses(Rule::ShortRows);
}

#[test]
fn time_between_ops_asks_for_a_larger_micro_batch() {
    let mut case = Case::sound();
    for name in ["forward", "backward"] {
        case.phase(name).op_seconds *= 0.7;
    }
    case.profile.setting.gradient_accumulation = 4;
    let finding = case.finds(Rule::SmallMicroBatch);
    let twice = Change::Batch {
        micro_batch: 8,
        gradient_accumulation: 2,
    };
    assert_eq!(finding.change, twice);
    // Without accumulation the global batch would change, and that is said.
    case.profile.setting.gradient_accumulation = 1;
    assert!(case.finds(Rule::SmallMicroBatch).evidence.contains("global batch"));
    Case::sound().misses(Rule::SmallMicroBatch);
}

#[test]
fn recomputation_is_needless_where_there_is_room() {
    let mut case = Case::sound();
    case.recipe.gradient_checkpointing = Checkpointing::Full;
    case.profile.setting.memory_limit_bytes = Some(10_000);
    case.peak(&[("base", 2_000), ("activations", 500)]);
    case.profile.phases.push(PhaseTime {
        phase: "recompute".to_owned(),
        seconds: 0.025,
        interval: 0.0,
        share: 0.25,
        op_seconds: 0.025,
        nested: true,
    });
    let finding = case.finds(Rule::RecomputesWithRoomLeft);
    assert_eq!(finding.change, Change::Checkpointing(Checkpointing::None));
    assert!((finding.gain.unwrap().value - 1.0 / 3.0).abs() < 1e-9);
    case.peak(&[("base", 9_000)]);
    case.misses(Rule::RecomputesWithRoomLeft);
}

#[test]
fn room_for_a_larger_micro_batch_is_used_only_where_it_helps() {
    let mut case = Case::sound();
    case.profile.setting.memory_limit_bytes = Some(10_000);
    case.profile.setting.gradient_accumulation = 2;
    case.peak(&[("base", 2_000), ("activations", 500)]);
    case.misses(Rule::RoomForALargerMicroBatch);
    for name in ["forward", "backward"] {
        case.phase(name).op_seconds *= 0.9;
    }
    case.finds(Rule::RoomForALargerMicroBatch);
    case.peak(&[("base", 5_000), ("activations", 3_000)]);
    case.misses(Rule::RoomForALargerMicroBatch);
}

#[test]
fn a_large_optimizer_state_can_be_smaller() {
    let mut case = Case::sound();
    case.peak(&[("base", 5_000), ("optimizer", 4_000)]);
    let finding = case.finds(Rule::OptimizerState);
    assert_eq!(finding.change, Change::Optimizer(OptimizerKind::AdamW8bit));
    let gain = finding.gain.unwrap();
    assert_eq!(gain.metric, Metric::PeakMemory);
    assert!((gain.value - 4_000.0 * 0.746).abs() < 4.0, "{gain:?}");
    // An adapter's state is too small to be worth it, and so is any where memory is ample.
    case.peak(&[("base", 500_000), ("optimizer", 4_000)]);
    case.misses(Rule::OptimizerState);
    case.peak(&[("base", 5_000), ("optimizer", 4_000)]);
    case.profile.setting.memory_limit_bytes = Some(1_000_000);
    case.misses(Rule::OptimizerState);
}

#[test]
fn an_8bit_state_that_saves_nothing_is_needless() {
    let mut case = Case::sound();
    case.recipe.optimizer.kind = OptimizerKind::AdamW8bit;
    case.phase("optimizer").share = 0.06;
    case.peak(&[("base", 1_000_000_000), ("optimizer", 2_000_000)]);
    assert_eq!(
        case.finds(Rule::Needless8bit).change,
        Change::Optimizer(OptimizerKind::AdamW)
    );
    case.peak(&[("base", 10_000_000), ("optimizer", 2_000_000)]);
    case.misses(Rule::Needless8bit);
}

#[test]
fn an_op_far_below_the_ceiling_is_named() {
    let mut case = Case::sound();
    case.profile.ops[1].roofline_share = Some(0.2);
    let finding = case.finds(Rule::SlowOp);
    assert!(
        finding.evidence.contains("backward matmul_nn (Tx576x1536)"),
        "{}",
        finding.evidence
    );
    case.profile.ops[1].roofline_share = Some(0.5);
    case.misses(Rule::SlowOp);
}

#[test]
fn widening_codes_that_takes_longer_than_multiplying_is_named() {
    let mut case = Case::sound();
    case.profile.setting.precision = "nf4".to_owned();
    case.recipe.precision = Precision::Nf4;
    let quantized = |op: &OpTime| OpTime {
        storage: "nf4".to_owned(),
        flops: op.flops / 4.0,
        ..op.clone()
    };
    case.profile.ops = vec![
        quantized(&case.profile.ops[0]),
        quantized(&case.profile.ops[1]),
        case.profile.ops[0].clone(),
    ];
    let finding = case.finds(Rule::DequantizationBound);
    assert_eq!(finding.change, Change::Precision(Precision::Bf16));
    for op in &mut case.profile.ops[..2] {
        op.flops *= 4.0;
    }
    case.misses(Rule::DequantizationBound);
}

#[test]
fn a_rank_is_too_high_where_a_lower_one_learns_as_much() {
    let mut case = Case::sound();
    let costs = |share| AdapterCost {
        share,
        ..AdapterCost::default()
    };
    case.profile.adapter = Some(costs(0.3));
    assert_eq!(case.finds(Rule::RankTooHigh).change, Change::Rank(8));
    let losses = |all: [(usize, f64); 3]| all.map(|(rank, loss)| RankLoss { rank, loss }).to_vec();
    case.losses = losses([(4, 2.001), (8, 2.0), (16, 2.0)]);
    let finding = case.finds(Rule::RankTooHigh);
    assert_eq!(finding.change, Change::Rank(4));
    assert!(finding.evidence.contains("2.0010"), "{}", finding.evidence);
    // The higher rank is worth it.
    case.losses = losses([(4, 2.4), (8, 2.3), (16, 2.0)]);
    case.misses(Rule::RankTooHigh);
    case.losses.clear();
    case.profile.adapter = Some(costs(0.05));
    case.misses(Rule::RankTooHigh);
}

#[test]
fn a_faster_number_type_is_proposed_where_products_rule() {
    let mut case = Case::sound();
    case.profile.setting.compute_dtype = "f32".to_owned();
    case.faster_type = faster(2.0);
    let finding = case.finds(Rule::SlowNumberType);
    assert_eq!(finding.change, Change::Precision(Precision::Bf16));
    case.faster_type = faster(1.05);
    case.misses(Rule::SlowNumberType);
}

#[test]
fn evaluating_too_often_is_told_with_a_better_distance() {
    let mut case = Case::sound();
    case.recipe.training.evaluate_every = Some(5);
    case.profile.data.training_evaluations = 50;
    case.profile.evaluation = Some(EvaluationCost {
        rows: 100,
        seconds: 0.5,
        share: 0.5,
    });
    let finding = case.finds(Rule::EvaluatesTooOften);
    let Change::EvaluateEvery(every) = finding.change else {
        panic!("{finding:?}")
    };
    assert!((90..=110).contains(&every), "{every}");
    // 50 evaluations of 0.5 s are half of the training; 3 of them are left.
    let left = 250u64.div_ceil(every) as f64 / 50.0;
    let share = 0.5 * (1.0 - left);
    assert_eq!(finding.gain, Some(Gain::without(share)));
    assert!(
        (finding.gain.unwrap().value - (50.0 / (25.0 + 25.0 * left) - 1.0)).abs() < 1e-9,
        "the same tokens in less time: {finding:?}"
    );
    case.profile.evaluation = Some(EvaluationCost {
        rows: 100,
        seconds: 0.01,
        share: 0.02,
    });
    case.misses(Rule::EvaluatesTooOften);
}

#[test]
fn writing_steps_down_too_often_is_told_with_a_better_distance() {
    let mut case = Case::sound();
    case.phase("logging").share = 0.2;
    let finding = case.finds(Rule::LogsTooOften);
    assert!(
        finding.evidence.contains("20% of a step's time") && finding.evidence.contains("(20.00 ms of 100.00 ms)"),
        "{}",
        finding.evidence
    );
    // 20 ms of 80 ms: one step in 25 brings that to 0.8 ms.
    assert_eq!(finding.change, Change::LogEvery(25));
    let gain = finding.gain.unwrap();
    assert!(
        (gain.value - (100.0 / (80.0 + 20.0 / 25.0) - 1.0)).abs() < 1e-9,
        "{gain:?}"
    );
    assert_eq!((gain.metric, gain.by), (Metric::Throughput, PredictedBy::Shares));
    // What is written down rarely already becomes as much rarer.
    case.profile.setting.log_every = 3;
    let finding = case.finds(Rule::LogsTooOften);
    assert_eq!(finding.change, Change::LogEvery(75));
    assert!(finding.evidence.contains("one in 3 is written"), "{}", finding.evidence);
    case.phase("logging").share = 0.015;
    case.misses(Rule::LogsTooOften);
    // A profile from before steps were written down in it says nothing about that.
    case.phase("logging").share = 0.2;
    case.profile.setting.log_every = 0;
    case.misses(Rule::LogsTooOften);
}

#[test]
fn a_falling_clock_is_throttling() {
    let mut case = Case::sound();
    case.samples(|at| DeviceSample {
        clock_mhz: Some(if at < 8 { 3000.0 } else { 2000.0 }),
        ..DeviceSample::default()
    });
    assert!(case.finds(Rule::Throttled).evidence.contains("from 3000 to 2000 MHz"));
    case.samples(|_| DeviceSample {
        throttled: Some(true),
        ..DeviceSample::default()
    });
    case.finds(Rule::Throttled);
    case.samples(|_| DeviceSample {
        clock_mhz: Some(3000.0),
        ..DeviceSample::default()
    });
    case.misses(Rule::Throttled);
}

#[test]
fn others_on_the_machine_are_noticed_only_where_they_are_in_the_way() {
    let mut case = Case::sound();
    case.samples(|_| DeviceSample {
        other_cores: Some(1.0),
        ..DeviceSample::default()
    });
    // Steps that are all alike do not tell what a quiet machine would give.
    assert_eq!(case.finds(Rule::NoisyNeighbour).gain, None);
    case.profile.steps.each[..4].fill((0.08, 1000));
    let finding = case.finds(Rule::NoisyNeighbour);
    assert!((finding.gain.unwrap().value - 0.25).abs() < 1e-9, "{finding:?}");
    // Half of the time is taken at most.
    case.profile.steps.each[..4].fill((0.01, 1000));
    let finding = case.finds(Rule::NoisyNeighbour);
    assert!((finding.gain.unwrap().value - 1.0).abs() < 1e-9, "{finding:?}");
    // Two free cores hold them.
    case.profile.setting.cores = 4;
    case.misses(Rule::NoisyNeighbour);
}

#[test]
fn gains_come_from_the_model_where_there_is_one() {
    struct Faster;
    impl Oracle for Faster {
        fn cost(&self, recipe: &Recipe) -> Option<Cost> {
            Some(Cost {
                tokens_per_s: if recipe.batch.packing { 150.0 } else { 100.0 },
                peak_bytes: 1e9,
            })
        }
    }
    let mut case = Case::sound();
    case.profile.data.mean_tokens_per_row = 60.0;
    case.phase("data").share = 0.1;
    let findings = case.findings_with(&Faster);
    assert_eq!(findings[0].rule, Rule::ShortRows, "the largest gain comes first");
    let gain = findings[0].gain.unwrap();
    assert_eq!((gain.value, gain.by), (0.5, PredictedBy::Model));
}

/// Predictions of `predict/` for a small model on a device of the table.
struct Predicted {
    predictor: Predictor,
    rows: [RowLengths; 2],
}

impl Predicted {
    fn new() -> Self {
        let config = r#"{"model_type": "llama", "vocab_size": 512, "hidden_size": 256, "intermediate_size": 704,
            "num_hidden_layers": 8, "num_attention_heads": 4, "max_position_embeddings": 512}"#;
        let rows = |tokens: usize, documents: usize| RowLengths::new(vec![vec![(tokens, tokens); documents]; 1000]);
        Self {
            predictor: crate::predictor(
                Architecture::from_json(Path::new("config.json"), config).unwrap(),
                Machine::DataSheet(predict::device("A100 80GB").unwrap()),
            ),
            rows: [rows(60, 1), rows(60, 4)],
        }
    }
}

impl Oracle for Predicted {
    fn cost(&self, recipe: &Recipe) -> Option<Cost> {
        let rows = &self.rows[usize::from(recipe.batch.packing)];
        let prediction = self.predictor.predict(&Setting {
            recipe,
            workload: &rows.workload(recipe.batch.micro_batch),
        });
        let prediction = prediction.unwrap();
        Some(Cost {
            tokens_per_s: prediction.tokens_per_s(),
            peak_bytes: prediction.peak_bytes() as f64,
        })
    }
}

/// A profile for each rule whose change is one of the recipe.
fn cases_that_predict_can_price() -> Vec<(Rule, Case)> {
    let of = |rule: Rule, change: &dyn Fn(&mut Case)| {
        let mut case = Case::sound();
        case.recipe.batch.micro_batch = 4;
        case.recipe.batch.sequence_length = 256;
        change(&mut case);
        (rule, case)
    };
    let recomputes = |case: &mut Case| {
        case.recipe.gradient_checkpointing = Checkpointing::Full;
        case.profile.setting.memory_limit_bytes = Some(1 << 40);
        let mut recomputing = case.phase("optimizer").clone();
        recomputing.phase = "recompute".to_owned();
        recomputing.share = 0.25;
        case.profile.phases.push(recomputing);
    };
    let quantized = |case: &mut Case| {
        case.recipe.precision = Precision::Nf4;
        let dense = case.profile.ops[0].clone();
        for op in &mut case.profile.ops {
            (op.storage, op.flops) = ("nf4".to_owned(), op.flops / 4.0);
        }
        case.profile.ops.push(dense);
    };
    vec![
        of(Rule::ShortRows, &|case| case.profile.data.mean_tokens_per_row = 60.0),
        of(Rule::SmallMicroBatch, &|case| case.phase("forward").op_seconds *= 0.5),
        of(Rule::RecomputesWithRoomLeft, &recomputes),
        of(Rule::RoomForALargerMicroBatch, &|case| {
            case.profile.setting.memory_limit_bytes = Some(1 << 40);
            case.profile.setting.gradient_accumulation = 2;
            case.recipe.batch.gradient_accumulation = 2;
        }),
        of(Rule::OptimizerState, &|case| {
            case.peak(&[("base", 5_000), ("optimizer", 4_000)])
        }),
        of(Rule::Needless8bit, &|case| {
            case.recipe.optimizer.kind = OptimizerKind::AdamW8bit;
            case.phase("optimizer").share = 0.06;
            case.peak(&[("base", 1_000_000_000), ("optimizer", 2_000_000)]);
        }),
        of(Rule::SlowOp, &|case| case.profile.ops[1].roofline_share = Some(0.2)),
        of(Rule::DequantizationBound, &quantized),
        of(Rule::RankTooHigh, &|case| {
            case.profile.adapter = Some(AdapterCost {
                share: 0.3,
                ..AdapterCost::default()
            });
        }),
        of(Rule::SlowNumberType, &|case| {
            case.recipe.precision = Precision::Fp32;
            case.profile.setting.compute_dtype = "f32".to_owned();
            case.faster_type = faster(2.0);
        }),
    ]
}

#[test]
fn the_gain_of_each_change_of_the_recipe_is_what_predict_says() {
    let oracle = Predicted::new();
    for (rule, case) in cases_that_predict_can_price() {
        let findings = case.findings_with(&oracle);
        let Some(finding) = findings.iter().find(|finding| finding.rule == rule) else {
            panic!("{rule:?} is not among {findings:?}")
        };
        let gain = finding.gain.unwrap();
        let changed = finding.change.apply(&case.recipe).unwrap();
        let (before, after) = (oracle.cost(&case.recipe).unwrap(), oracle.cost(&changed).unwrap());
        let expected = match gain.metric {
            Metric::Throughput => after.tokens_per_s / before.tokens_per_s - 1.0,
            Metric::PeakMemory => before.peak_bytes - after.peak_bytes,
        };
        assert_eq!((gain.by, gain.value), (PredictedBy::Model, expected), "{rule:?}");
        assert_ne!(expected, 0.0, "{rule:?}: {finding:?}");
    }
}
