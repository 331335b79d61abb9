//! How the rows of a mixture lie on its experts.

use super::host::Host;
use super::op::{Module, Product, Right};
use crate::plan::products::{Call, quantized_at_once};
use crate::plan::{Buffer, Form, Memory, ThreadScratch};

/// A router's choices, as far as products depend on them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpertLoad {
    /// Load of as many rows for each expert.
    #[default]
    Even,
    /// Load in which the n-th expert has a share of 1/n, but no token twice.
    Zipf,
    /// Load in which all tokens choose the same experts.
    Crowded,
}

/// Experts with as many rows each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertGroup {
    pub rows: f64,
    pub experts: f64,
}

/// The rows of a mixture on its experts.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertRows {
    /// Experts of the layer, those without rows among them.
    pub experts: usize,
    /// Rows of all experts together.
    pub rows: usize,
    /// The experts that have rows.
    pub groups: Vec<ExpertGroup>,
}

impl ExpertGroup {
    /// A product of one of the experts, where `all` has the rows of all experts.
    fn share(&self, all: &Call) -> Call {
        let rows = self.rows.ceil() as usize;
        match all.form {
            Form::Tn => Call {
                depth: rows,
                longest_term: rows,
                ..*all
            },
            Form::Nt | Form::Nn => Call { rows, ..*all },
        }
    }
}

impl ExpertRows {
    /// The rows of `tokens` tokens that choose `chosen` of `experts` experts each.
    pub fn new(load: ExpertLoad, experts: usize, tokens: usize, chosen: usize) -> Self {
        Self {
            experts,
            rows: tokens * chosen,
            groups: load.groups(experts, tokens, chosen),
        }
    }

    /// A product of each expert's rows, which `all` has together, and how often there is such a one.
    pub fn products(&self, all: &Call, module: Module, right: Right) -> impl Iterator<Item = (Product, f64)> {
        let groups = self.experts.min(self.rows).max(1);
        let at_once = match all.quantized {
            true => quantized_at_once(self.experts, all.columns * all.depth),
            false => groups,
        };
        let launches = 1.0 / at_once.min(groups) as f64;
        let (product, is_summed) = (Product::new(all, module, right), all.form == Form::Tn);
        self.groups.iter().map(move |group| {
            let one = Product {
                rows: if is_summed { product.rows } else { group.rows },
                depth: if is_summed { group.rows } else { product.depth },
                launches,
                ..product
            };
            (one, group.experts)
        })
    }

    /// A product of each expert's rows, as [`ExpertRows::products`] has it, where they run one behind the other.
    pub fn products_one_by_one(
        &self,
        all: &Call,
        module: Module,
        right: Right,
    ) -> impl Iterator<Item = (Product, f64)> {
        let alone = |(product, times)| {
            (
                Product {
                    launches: 1.0,
                    ..product
                },
                times,
            )
        };
        self.products(all, module, right).map(alone)
    }

    /// Adds what is kept after dense products of each expert's rows, one behind the other, which `all` has together. Returns the bytes that one
    /// of them takes and frees.
    pub fn keep_one_by_one(&self, all: &Call, kept: &mut ThreadScratch, host: Host) -> u64 {
        let each = |group: &ExpertGroup| {
            let call = group.share(all);
            call.keep(kept, host.vectors, host.threads);
            call.spike(host.vectors)
        };
        self.groups.iter().map(each).max().unwrap_or(0)
    }

    /// Adds what is kept after a product of each expert's rows, which `all` has together. Returns the bytes that it takes and frees.
    pub fn keep(&self, all: &Call, kept: &mut ThreadScratch, host: Host) -> u64 {
        let mut spike = 0;
        for group in &self.groups {
            let each = group.share(all);
            // One that has more than a thread's share of the rows runs on all threads; the others run beside each other.
            let is_alone = group.rows > self.rows as f64 / host.threads as f64;
            let (threads, at_once) = match is_alone {
                true => (host.threads, 1),
                false => (1, host.threads.min(group.experts.ceil() as usize)),
            };
            each.keep(kept, host.vectors, threads);
            if !is_alone {
                each.keep_codes(kept, Buffer::GroupByteCodes, host.vectors);
            }
            spike = spike.max(at_once as u64 * each.spike(host.vectors));
        }
        if host.memory() == Memory::Device {
            // Dense matrices in another dtype are converted all at once.
            spike = spike.max((self.experts * all.converted) as u64 * all.left_bytes);
        }
        if all.quantized && host.memory() == Memory::Device {
            let elements = all.columns * all.depth;
            kept.dequantize(quantized_at_once(self.experts, elements) * elements, all.left_bytes);
        }
        spike
    }
}

impl ExpertLoad {
    /// The experts that have rows, of `count` experts and `tokens` tokens that choose `chosen` each.
    pub(super) fn groups(self, count: usize, tokens: usize, chosen: usize) -> Vec<ExpertGroup> {
        let (rows, experts) = ((tokens * chosen) as f64, count.min(tokens * chosen).max(1) as f64);
        let alike = |experts: f64| {
            vec![ExpertGroup {
                rows: rows / experts,
                experts,
            }]
        };
        match self {
            Self::Even => alike(experts),
            Self::Crowded => alike(chosen as f64),
            Self::Zipf => zipf(count, tokens, chosen),
        }
    }
}

/// Shares of 1/n, of which none is above all tokens: what is above goes to the others.
fn zipf(count: usize, tokens: usize, chosen: usize) -> Vec<ExpertGroup> {
    let (mut left, most) = ((tokens * chosen) as f64, tokens as f64);
    let mut weights: f64 = (1..=count).map(|n| 1.0 / n as f64).sum();
    let mut groups = Vec::with_capacity(count);
    for n in 1..=count {
        let weight = 1.0 / n as f64;
        let rows = (left * weight / weights).min(most);
        if rows < 1.0 {
            // Of the rest some have a row, and the others none.
            let experts = left;
            groups.push(ExpertGroup { rows: 1.0, experts });
            break;
        }
        (left, weights) = (left - rows, weights - weight);
        groups.push(ExpertGroup { rows, experts: 1.0 });
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Vectors;

    #[test]
    fn no_load_loses_a_row_or_gives_an_expert_a_token_twice() {
        for (count, tokens, chosen) in [(128, 1024, 8), (32, 512, 4), (4, 64, 4), (60, 3, 4)] {
            for load in [ExpertLoad::Even, ExpertLoad::Zipf, ExpertLoad::Crowded] {
                let groups = load.groups(count, tokens, chosen);
                let all: f64 = groups.iter().map(|group| group.rows * group.experts).sum();
                let experts: f64 = groups.iter().map(|group| group.experts).sum();
                let rows = (tokens * chosen) as f64;
                assert!((all - rows).abs() < 1e-9 * rows, "{load:?}: {all} of {rows}");
                assert!(
                    experts <= count as f64 && experts >= chosen as f64 - 0.5,
                    "{load:?}: {experts}"
                );
                assert!(
                    groups.iter().all(|group| group.rows <= tokens as f64 + 1e-9),
                    "{load:?}"
                );
            }
        }
    }

    #[test]
    fn experts_of_as_many_threads_widen_their_rows_at_once() {
        let host = Host {
            threads: 4,
            vectors: Vectors::Avx512,
            device_bytes: 0,
        };
        // F16, (256, 48) of 32 inputs.
        let all = Call::dense(Form::Nt, [256, 48, 32], 2, false);
        let spike = |load| ExpertRows::new(load, 16, 128, 2).keep(&all, &mut ThreadScratch::default(), host);
        let widened = |rows: u64| 4 * 32 * rows;
        assert_eq!(spike(ExpertLoad::Even), 4 * widened(16));
        assert_eq!(spike(ExpertLoad::Crowded), widened(128));
    }

    #[test]
    fn shares_fall_as_one_over_n() {
        let groups = ExpertLoad::Zipf.groups(32, 1000, 2);
        for (n, group) in (1..).zip(&groups) {
            assert!((group.rows * f64::from(n) / groups[0].rows - 1.0).abs() < 1e-9);
        }
    }
}
