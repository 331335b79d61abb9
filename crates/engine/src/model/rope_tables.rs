//! The cosines and sines of all ropes of a model, as long as the longest document so far.

use candle_core::{Device, Result};

use super::traced::rope;
use crate::tensor::Tensor;
use peft_tune_core::architecture::{Rope, RopeOrder};
use peft_tune_kernels::ops::rope::{PairOrder, RopeTable};

/// One table for each of [`Architecture::ropes`](peft_tune_core::architecture::Architecture::ropes).
#[derive(Debug)]
pub(crate) struct RopeTables {
    ropes: Vec<Rope>,
    tables: Vec<LayerRope>,
    /// Document length that the tables' frequencies are for.
    longest: usize,
    version: u64,
    device: Device,
}

/// The rotation of one layer's queries and keys.
#[derive(Debug)]
pub(super) struct LayerRope {
    /// Table of keys, and of queries where they have no table of their own.
    table: RopeTable,
    /// Table of queries that grow with their position, or that turn at another place of their heads than keys.
    queries: Option<RopeTable>,
}

impl LayerRope {
    fn new(rope: &Rope, longest: usize, rows: usize, device: &Device) -> Result<Self> {
        let frequencies = rope.frequencies(longest);
        let order = match rope.order {
            RopeOrder::Halves => PairOrder::Halves,
            RopeOrder::Neighbours => PairOrder::Neighbours,
        };
        let table = RopeTable::new(&frequencies, f64::from(rope.amplitude()), rows, device)?.in_order(order);
        let growth = rope.query_growth.as_ref();
        let queries = growth.map(|growth| table.stretched(|position| growth.factor(position)));
        let queries = match (queries.transpose()?, rope.plain_dims) {
            (queries, 0) => queries,
            (queries, plain) => Some(queries.unwrap_or_else(|| table.clone()).behind(plain)),
        };
        Ok(Self { queries, table })
    }

    /// The table of queries and keys alike, where there is but one.
    pub(super) fn shared(&self) -> Option<&RopeTable> {
        self.queries.is_none().then_some(&self.table)
    }

    /// Rotates queries and keys, which nobody else may hold.
    pub(super) fn forward(&self, [q, k]: [Tensor; 2], positions: &Tensor) -> Result<[Tensor; 2]> {
        match &self.queries {
            None => rope::forward_both([q, k], &self.table, positions),
            Some(queries) => {
                let turned = rope::forward(&q, queries, positions)?;
                drop(q);
                Ok([turned, rope::forward(&k, &self.table, positions)?])
            }
        }
    }

    /// Rotates queries alone.
    pub(super) fn forward_queries(&self, q: &Tensor, positions: &Tensor) -> Result<Tensor> {
        rope::forward(q, self.queries.as_ref().unwrap_or(&self.table), positions)
    }

    /// The gradient of [`LayerRope::forward_queries`].
    pub(super) fn backward_queries(&self, q: &Tensor, positions: &Tensor) -> Result<Tensor> {
        rope::backward(q, self.queries.as_ref().unwrap_or(&self.table), positions)
    }

    /// Gradients with respect to queries and keys.
    pub(super) fn backward(&self, [q, k]: [Tensor; 2], positions: &Tensor) -> Result<[Tensor; 2]> {
        match &self.queries {
            None => rope::backward_both([q, k], &self.table, positions),
            Some(queries) => {
                let turned = rope::backward(&q, queries, positions)?;
                drop(q);
                Ok([turned, rope::backward(&k, &self.table, positions)?])
            }
        }
    }
}

impl RopeTables {
    pub(crate) fn new(ropes: &[Rope], device: &Device) -> Self {
        Self {
            ropes: ropes.to_vec(),
            tables: Vec::new(),
            longest: 0,
            version: 0,
            device: device.clone(),
        }
    }

    /// Whether documents of up to `longest` tokens turn by other frequencies than those of up to `before`.
    pub(crate) fn turns_otherwise(&self, before: usize, longest: usize) -> bool {
        self.ropes.iter().any(|rope| !rope.same_frequencies(before, longest))
    }

    /// Makes the tables fit documents of up to `longest` tokens.
    pub(crate) fn prepare(&mut self, longest: usize) -> Result<()> {
        let rows = self.tables.first().map_or(0, |rope| rope.table.positions());
        let same = self
            .ropes
            .iter()
            .all(|rope| rope.same_frequencies(self.longest, longest));
        if rows >= longest && same {
            return Ok(());
        }
        // Rounded up, so that slowly growing documents do not build a table each.
        let rows = longest.max(rows).next_power_of_two();
        let table = |rope: &Rope| LayerRope::new(rope, longest, rows, &self.device);
        self.tables = self.ropes.iter().map(table).collect::<Result<_>>()?;
        self.longest = longest;
        self.version += 1;
        Ok(())
    }

    /// Number that differs each time that the tables are made.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Rope `index`; [`RopeTables::prepare`] has been called.
    pub(super) fn rope(&self, index: usize) -> &LayerRope {
        &self.tables[index]
    }

    /// Bytes of all tables.
    #[cfg(test)]
    fn rows(&self) -> usize {
        self.tables[0].table.positions()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::architecture::RopeScaling;

    #[test]
    fn tables_grow_with_the_longest_document() {
        let rope = Rope {
            base: 10_000.0,
            rotary_dims: 4,
            plain_dims: 0,
            order: RopeOrder::Halves,
            scaling: RopeScaling::None,
            query_growth: None,
        };
        let mut tables = RopeTables::new(&[rope], &Device::Cpu);
        tables.prepare(5).unwrap();
        assert_eq!(tables.rows(), 8);
        tables.prepare(3).unwrap();
        assert_eq!((tables.rows(), tables.version()), (8, 1));
        tables.prepare(9).unwrap();
        assert_eq!((tables.rows(), tables.version()), (16, 2));
    }

    #[test]
    fn longrope_switches_back_for_short_documents() {
        let rope = Rope {
            base: 10_000.0,
            rotary_dims: 2,
            plain_dims: 0,
            order: RopeOrder::Halves,
            query_growth: None,
            scaling: peft_tune_core::architecture::RopeScaling::LongRope {
                short_factor: vec![1.0],
                long_factor: vec![2.0],
                original_max_positions: 4,
                attention_factor: 1.0,
            },
        };
        let mut tables = RopeTables::new(&[rope], &Device::Cpu);
        let cosine = |tables: &RopeTables| tables.rope(0).table.cos.to_vec2::<f32>().unwrap()[1][0];
        tables.prepare(4).unwrap();
        let short = cosine(&tables);
        tables.prepare(5).unwrap();
        let long = cosine(&tables);
        tables.prepare(2).unwrap();
        assert!(short == 1f32.cos() && long == 0.5f32.cos() && cosine(&tables) == short);
    }
}
