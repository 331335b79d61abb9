//! The optimizers, one row each: all that is to be known of one but its arithmetic, which `train/optimizer` has.

use serde::Serialize;

use super::named::named;

/// The update rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OptimizerKind {
    #[default]
    AdamW,
    Sgd,
    AdamW8bit,
    PagedAdamW,
    PagedAdamW8bit,
    Lion,
    Lion8bit,
    Adafactor,
    Muon,
    AdamWScheduleFree,
}

/// Row of the table of optimizers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct OptimizerRow {
    #[serde(skip)]
    pub kind: OptimizerKind,
    pub name: &'static str,
    /// Names that are read beside `name`.
    pub aliases: &'static [&'static str],
    pub about: &'static str,
    /// The optimizer with the same arithmetic whose states are F32 and on the device: itself, for most.
    pub rule: OptimizerKind,
    /// The optimizer that updates what is no matrix, where that is another one.
    pub of_vectors: Option<OptimizerKind>,
    /// Bits of a state.
    pub bits: u32,
    /// Whether the states lie in the host's memory.
    pub paged: bool,
    pub states: States,
    /// Whether it averages where it was in place of a falling learning rate: of the schedule it reads the warm-up only.
    pub schedule_free: bool,
    pub reads: Reads,
    pub update: Update,
    /// Usual learning rate, as a multiple of AdamW's, where that is known.
    #[serde(skip)]
    pub usual_rate: Option<f64>,
}

/// States that an optimizer keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum States {
    /// Numbers for each element, so many.
    OfElements(u64),
    /// Number for each element; none where the momentum is 0.
    Velocity,
    /// Number for each row and each column of a matrix, and for each element of a vector.
    Factored,
    /// Numbers for each element of a matrix, and of a vector.
    ByShape { matrix: u64, vector: u64 },
}

/// Settings that the arithmetic reads beside learning rate and weight decay.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Reads {
    /// Whether it reads `beta1` and `beta2`, and its own `beta2` then, where none is set.
    pub default_beta2: Option<f64>,
    pub epsilon: bool,
    pub momentum: bool,
    pub nesterov: bool,
}

/// Cost of an update.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Update {
    /// Name among the ceilings of a machine; those of the rule and of the unpaged twin are the same.
    pub ceiling: &'static str,
    /// Bytes read and written for each element.
    pub bytes: f64,
    pub order: UpdateOrder,
}

/// Order in which an update passes over the parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UpdateOrder {
    /// One pass over all of them.
    AllAtOnce,
    /// One parameter after the other.
    OneByOne,
    /// One pass, then products that make each matrix orthogonal.
    Orthogonalised,
}

const NOTHING: Reads = Reads {
    default_beta2: None,
    epsilon: false,
    momentum: false,
    nesterov: false,
};
const ADAM: Reads = Reads {
    default_beta2: Some(0.999),
    epsilon: true,
    ..NOTHING
};
const LION: Reads = Reads {
    default_beta2: Some(0.99),
    ..NOTHING
};

/// An update of so many bytes an element in one pass over all parameters.
const fn at_once(ceiling: &'static str, bytes: f64) -> Update {
    Update {
        ceiling,
        bytes,
        order: UpdateOrder::AllAtOnce,
    }
}

/// AdamW with F32 states on the device, from which its other forms differ in little.
const ADAMW: OptimizerRow = OptimizerRow {
    kind: OptimizerKind::AdamW,
    name: "adamw",
    aliases: &[],
    about: "AdamW (arXiv:1711.05101).",
    rule: OptimizerKind::AdamW,
    of_vectors: None,
    bits: 32,
    paged: false,
    states: States::OfElements(2),
    schedule_free: false,
    reads: ADAM,
    usual_rate: Some(1.0),
    update: at_once("update_f32", 28.0),
};
const ADAMW_8BIT: OptimizerRow = OptimizerRow {
    kind: OptimizerKind::AdamW8bit,
    name: "adamw_8bit",
    aliases: &["adamw8bit"],
    about: "AdamW whose states are 8-bit codes (arXiv:2110.02861).",
    bits: 8,
    update: at_once("update_8bit", 16.0),
    ..ADAMW
};
const LION_ROW: OptimizerRow = OptimizerRow {
    kind: OptimizerKind::Lion,
    name: "lion",
    aliases: &[],
    about: "Lion (arXiv:2302.06675).",
    rule: OptimizerKind::Lion,
    of_vectors: None,
    bits: 32,
    paged: false,
    states: States::OfElements(1),
    schedule_free: false,
    reads: LION,
    // A third to a tenth of AdamW's, says its paper.
    usual_rate: Some(1.0 / 3.0),
    update: at_once("update_lion", 20.0),
};

const ROWS: &[OptimizerRow] = &[
    ADAMW,
    OptimizerRow {
        kind: OptimizerKind::Sgd,
        name: "sgd",
        aliases: &[],
        about: "Gradient descent, with momentum where that is not 0.",
        rule: OptimizerKind::Sgd,
        of_vectors: None,
        bits: 32,
        paged: false,
        states: States::Velocity,
        schedule_free: false,
        reads: Reads {
            momentum: true,
            nesterov: true,
            ..NOTHING
        },
        usual_rate: None,
        update: at_once("update_sgd", 20.0),
    },
    ADAMW_8BIT,
    OptimizerRow {
        kind: OptimizerKind::PagedAdamW,
        name: "paged_adamw",
        aliases: &[],
        about: "AdamW whose states lie in the host's memory.",
        paged: true,
        ..ADAMW
    },
    OptimizerRow {
        kind: OptimizerKind::PagedAdamW8bit,
        name: "paged_adamw_8bit",
        aliases: &["paged_adamw8bit"],
        about: "AdamW whose states are 8-bit codes in the host's memory.",
        paged: true,
        ..ADAMW_8BIT
    },
    LION_ROW,
    OptimizerRow {
        kind: OptimizerKind::Lion8bit,
        name: "lion_8bit",
        aliases: &["lion8bit"],
        about: "Lion whose state is 8-bit codes.",
        bits: 8,
        update: at_once("update_lion_8bit", 14.0),
        ..LION_ROW
    },
    OptimizerRow {
        kind: OptimizerKind::Adafactor,
        name: "adafactor",
        aliases: &[],
        about: "Adafactor with the learning rate as it is set (arXiv:1804.04235).",
        rule: OptimizerKind::Adafactor,
        of_vectors: None,
        bits: 32,
        paged: false,
        states: States::Factored,
        schedule_free: false,
        reads: NOTHING,
        usual_rate: None,
        update: Update {
            ceiling: "update_adafactor",
            bytes: 20.0,
            order: UpdateOrder::OneByOne,
        },
    },
    OptimizerRow {
        kind: OptimizerKind::Muon,
        name: "muon",
        aliases: &[],
        about: "Muon for matrices, AdamW for all else (Jordan et al. 2024).",
        rule: OptimizerKind::Muon,
        of_vectors: Some(OptimizerKind::AdamW),
        bits: 32,
        paged: false,
        states: States::ByShape { matrix: 1, vector: 2 },
        schedule_free: false,
        reads: Reads {
            momentum: true,
            ..NOTHING
        },
        usual_rate: None,
        update: Update {
            order: UpdateOrder::Orthogonalised,
            ..at_once("update_sgd", 20.0)
        },
    },
    OptimizerRow {
        kind: OptimizerKind::AdamWScheduleFree,
        name: "adamw_schedulefree",
        aliases: &["schedule_free_adamw"],
        about: "Schedule-Free AdamW, of whose schedule only the warm-up counts (arXiv:2405.15682).",
        rule: OptimizerKind::AdamWScheduleFree,
        schedule_free: true,
        // The update, and before the passes a read of values and offsets and a write of values.
        update: at_once("update_schedulefree", 40.0),
        ..ADAMW
    },
];

named!(OptimizerKind, OptimizerRow, ROWS, "OptimizerKind", "The update rule.");

impl OptimizerKind {
    /// Whether it reads `beta1` and `beta2`.
    pub fn reads_betas(self) -> bool {
        self.row().reads.default_beta2.is_some()
    }

    /// Whether it reads `epsilon`.
    pub fn reads_epsilon(self) -> bool {
        self.row().reads.epsilon
    }

    /// Whether it reads `momentum`.
    pub fn reads_momentum(self) -> bool {
        self.row().reads.momentum
    }

    /// Whether it reads `nesterov`.
    pub fn reads_nesterov(self) -> bool {
        self.row().reads.nesterov
    }

    /// Whether it reads no more of the schedule than the warm-up.
    pub fn is_schedule_free(self) -> bool {
        self.row().schedule_free
    }

    /// Whether its states lie in the host's memory.
    pub fn is_paged(self) -> bool {
        self.row().paged
    }

    /// Whether its states are 8-bit codes.
    pub fn has_8bit_states(self) -> bool {
        self.row().bits == 8
    }

    /// The optimizer with the same arithmetic whose states are F32 and on the device.
    pub fn rule(self) -> Self {
        self.row().rule
    }

    /// The optimizer that computes the same updates with its states on the device.
    pub fn unpaged(self) -> Self {
        self.twin(self.row().bits).unwrap_or(self)
    }

    /// The optimizer with the same arithmetic whose states are 8-bit codes on the device, where there is one.
    pub fn in_8_bits(self) -> Option<Self> {
        self.twin(8)
    }

    /// The one with the same arithmetic and so many bits a state, on the device.
    fn twin(self, bits: u32) -> Option<Self> {
        let is_twin = |other: &Self| other.rule() == self.rule() && other.row().bits == bits && !other.is_paged();
        Self::ALL.into_iter().find(is_twin)
    }

    /// The optimizer that updates what is no matrix.
    pub fn of_vectors(self) -> Self {
        self.row().of_vectors.unwrap_or(self)
    }

    /// Whether it keeps no velocity at a momentum of 0.
    pub fn drops_velocity(self) -> bool {
        self.row().states == States::Velocity
    }
}

#[cfg(test)]
mod tests {
    use super::OptimizerKind::*;
    use super::*;

    #[test]
    fn twins_follow_from_rule_bits_and_paging() {
        let unpaged = OptimizerKind::ALL.map(OptimizerKind::unpaged);
        assert_eq!(
            unpaged,
            [
                AdamW,
                Sgd,
                AdamW8bit,
                AdamW,
                AdamW8bit,
                Lion,
                Lion8bit,
                Adafactor,
                Muon,
                AdamWScheduleFree
            ]
        );
        let coded = [PagedAdamW, Lion, Sgd, Muon].map(OptimizerKind::in_8_bits);
        assert_eq!(coded, [Some(AdamW8bit), Some(Lion8bit), None, None]);
    }

    #[test]
    fn no_two_optimizers_have_a_name_in_common() {
        let rows = OptimizerKind::ALL.map(OptimizerKind::row);
        let mut names: Vec<&str> = rows
            .iter()
            .flat_map(|row| row.aliases.iter().chain([&row.name]))
            .copied()
            .collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
        assert_eq!(OptimizerKind::from_name("adamw8bit"), Some(AdamW8bit));
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let error = serde_json::from_str::<OptimizerKind>("\"adam\"")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("`adam`") && error.contains("`paged_adamw_8bit`"),
            "{error}"
        );
    }
}
