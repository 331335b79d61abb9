//! Ceilings of a GPU: large products and copies, measured on it or as its maker publishes them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::ceilings::Headline;
use super::data_sheet::DataSheet;
use crate::recipe::Precision;

/// The ceilings of one GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceCeilings {
    /// FLOP/s of large dense products, by the precision that stands for the compute dtype.
    pub products: BTreeMap<Precision, f64>,
    /// Bytes a second that a copy within the device's memory reads and writes.
    pub memory_bytes_per_s: f64,
}

impl DeviceCeilings {
    /// The maker's figures: rates that no program reaches.
    pub fn of_sheet(sheet: &DataSheet) -> Self {
        let dense = [Precision::Fp32, Precision::Bf16, Precision::Fp16];
        Self {
            products: dense.map(|precision| (precision, sheet.peak_flops(precision))).into(),
            memory_bytes_per_s: sheet.bandwidth,
        }
    }

    /// FLOP/s of large products in the compute dtype of `precision`.
    pub fn flops_per_s(&self, precision: Precision) -> Option<f64> {
        self.products.get(&precision.compute()).copied()
    }

    /// Whether the compute dtypes of all of them are known.
    pub fn cover(&self, precisions: &[Precision]) -> bool {
        precisions
            .iter()
            .all(|precision| self.flops_per_s(*precision).is_some())
    }

    /// The ceilings that people compare devices by.
    pub fn headlines(&self) -> Vec<Headline> {
        let products = self.products.iter().map(|(precision, rate)| Headline {
            name: format!("gpu gemm {}", precision.name()),
            value: rate / 1e9,
            unit: "GFLOP/s",
        });
        let memory = Headline {
            name: "gpu memory".to_owned(),
            value: self.memory_bytes_per_s / 1e9,
            unit: "GB/s",
        };
        products.chain([memory]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predict::device;

    #[test]
    fn a_data_sheet_has_the_tensor_cores_rate_for_16_bits_where_they_take_them() {
        let rates = |name| {
            let known = DeviceCeilings::of_sheet(device(name).unwrap());
            [Precision::Fp32, Precision::Nf4, Precision::Fp16]
                .map(|precision| known.flops_per_s(precision).unwrap().round())
        };
        assert_eq!(rates("H200"), [66.9e12, 989.4e12, 989.4e12]);
        // NF4 is multiplied as BF16, which these tensor cores do not take.
        assert_eq!(rates("T4"), [8.1e12, 8.1e12, 65e12]);
    }

    #[test]
    fn what_was_measured_is_read_again_and_covers_its_dtypes() {
        let known = DeviceCeilings {
            products: [(Precision::Bf16, 7e14)].into(),
            memory_bytes_per_s: 4e12,
        };
        let text = serde_json::to_string(&known).unwrap();
        assert_eq!(serde_json::from_str::<DeviceCeilings>(&text).unwrap(), known);
        assert!(known.cover(&[Precision::Nf4, Precision::Bf16]) && !known.cover(&[Precision::Fp32]));
        let shown: Vec<_> = known.headlines().into_iter().map(|one| (one.name, one.value)).collect();
        assert_eq!(
            shown,
            [("gpu gemm bf16".to_owned(), 7e5), ("gpu memory".to_owned(), 4e3)]
        );
    }
}
