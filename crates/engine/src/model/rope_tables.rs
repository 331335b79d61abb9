//! The cosines and sines of all ropes of a model, as long as the longest document so far.

use candle_core::{Device, Result};

use peft_tune_core::architecture::Rope;
use peft_tune_kernels::ops::rope::RopeTable;

/// One table for each of [`Architecture::ropes`](peft_tune_core::architecture::Architecture::ropes).
#[derive(Debug)]
pub(crate) struct RopeTables {
    ropes: Vec<Rope>,
    tables: Vec<RopeTable>,
    /// Document length that the tables' frequencies are for.
    longest: usize,
    version: u64,
    device: Device,
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
        let rows = self.tables.first().map_or(0, RopeTable::positions);
        let same = self
            .ropes
            .iter()
            .all(|rope| rope.same_frequencies(self.longest, longest));
        if rows >= longest && same {
            return Ok(());
        }
        // Rounded up, so that slowly growing documents do not build a table each.
        let rows = longest.max(rows).next_power_of_two();
        let table = |rope: &Rope| {
            let frequencies = rope.frequencies(longest);
            RopeTable::new(&frequencies, f64::from(rope.amplitude()), rows, &self.device)
        };
        self.tables = self.ropes.iter().map(table).collect::<Result<_>>()?;
        self.longest = longest;
        self.version += 1;
        Ok(())
    }

    /// Another number for each time that the tables were made.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// The table of rope `index`; [`RopeTables::prepare`] has been called.
    pub(super) fn table(&self, index: usize) -> &RopeTable {
        &self.tables[index]
    }

    /// Bytes of all tables.
    #[cfg(test)]
    fn rows(&self) -> usize {
        self.tables[0].positions()
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
            scaling: RopeScaling::None,
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
            scaling: peft_tune_core::architecture::RopeScaling::LongRope {
                short_factor: vec![1.0],
                long_factor: vec![2.0],
                original_max_positions: 4,
                attention_factor: 1.0,
            },
        };
        let mut tables = RopeTables::new(&[rope], &Device::Cpu);
        let cosine = |tables: &RopeTables| tables.table(0).cos.to_vec2::<f32>().unwrap()[1][0];
        tables.prepare(4).unwrap();
        let short = cosine(&tables);
        tables.prepare(5).unwrap();
        let long = cosine(&tables);
        tables.prepare(2).unwrap();
        assert!(short == 1f32.cos() && long == 0.5f32.cos() && cosine(&tables) == short);
    }
}
