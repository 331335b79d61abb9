//! Memory that a device leaves to a training, and how a GPU generation differs from its data sheet.

use serde::Serialize;

use super::super::DataSheet;

const MIB: u64 = 1 << 20;

/// A GPU generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Generation {
    /// GPUs without BF16 and without flash attention.
    BeforeAmpere,
    /// The A100.
    Ampere,
    /// GA102 and its kin, on cards.
    AmpereCards,
    Ada,
    Hopper,
    Blackwell,
    /// Processor of the host, without a GPU.
    Host,
}

/// Properties of a generation beside its data sheets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct GenerationRow {
    pub(super) generation: Generation,
    /// CUDA context and the libraries' own memory, which the allocator does not count.
    pub(super) context_bytes: u64,
    /// Large products, beside the stack's share of the published peak: cards run above the clock of their data sheets.
    pub(super) matrix_share: f64,
}

const GENERATIONS: [GenerationRow; 7] = [
    GenerationRow {
        generation: Generation::BeforeAmpere,
        context_bytes: 141 * MIB,
        matrix_share: 0.55,
    },
    GenerationRow {
        generation: Generation::Ampere,
        context_bytes: 480 * MIB,
        matrix_share: 0.95,
    },
    GenerationRow {
        generation: Generation::AmpereCards,
        context_bytes: 420 * MIB,
        matrix_share: 1.25,
    },
    GenerationRow {
        generation: Generation::Ada,
        context_bytes: 420 * MIB,
        matrix_share: 1.2,
    },
    GenerationRow {
        generation: Generation::Hopper,
        context_bytes: 560 * MIB,
        matrix_share: 0.75,
    },
    GenerationRow {
        generation: Generation::Blackwell,
        context_bytes: 600 * MIB,
        matrix_share: 0.7,
    },
    GenerationRow {
        generation: Generation::Host,
        context_bytes: 0,
        matrix_share: 1.0,
    },
];

/// The host's name in place of a GPU's.
pub const HOST: &str = "cpu";

/// A device that a stack is to run on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StackDevice {
    pub sheet: &'static DataSheet,
}

impl StackDevice {
    /// Whether it is the host's own processor, whose ceilings were measured.
    pub fn is_host(&self) -> bool {
        self.sheet.name == HOST
    }

    /// The generation, by the name in the table of data sheets.
    pub fn generation(&self) -> Generation {
        let name = self.sheet.name;
        let has = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
        if self.is_host() {
            Generation::Host
        } else if has(&["T4", "V100"]) {
            Generation::BeforeAmpere
        } else if has(&["B200", "5090"]) {
            Generation::Blackwell
        } else if has(&["H100", "H200"]) {
            Generation::Hopper
        } else if has(&["L4", "Ada", "4090"]) {
            Generation::Ada
        } else if has(&["A100"]) {
            Generation::Ampere
        } else {
            Generation::AmpereCards
        }
    }

    pub(super) fn row(&self) -> &'static GenerationRow {
        let own = self.generation();
        let found = GENERATIONS.iter().find(|row| row.generation == own);
        found.unwrap_or(&GENERATIONS[1])
    }

    /// Bytes that programs can have of it: data sheets round up, and error correction on GDDR takes a sixteenth.
    pub fn usable_bytes(&self) -> u64 {
        let whole = self.sheet.memory_bytes;
        let share = match self.sheet.name {
            // 14.6 GiB: a sixteenth for error correction, and what the driver keeps.
            "T4" => 0.91,
            "L4" | "L40S" | "A10" | "A40" => 0.9375,
            _ => 0.985,
        };
        (whole as f64 * share) as u64
    }
}
