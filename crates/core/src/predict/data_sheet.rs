//! Peaks of devices as their makers publish them, for predictions without the device.
//!
//! Dense rates, sparsity not counted; `matrix` is the tensor cores' rate in BF16 (FP16 where the device has no BF16),
//! `f32` that of the plain FP32 units, which fp32 training without TF32 runs on.
//!
//! Bytes (INT8 TOPS) go by the same sheets: twice `matrix`, four times on GeForce, whose `matrix` is half of what the units could.
//!
//! Sources, all NVIDIA: A100 datasheet (2021), H100 datasheet (2023), H200 datasheet (2024), L4 and L40S datasheets (2023),
//! A10 datasheet (2021), RTX A6000 datasheet (2021), RTX 6000 Ada datasheet (2023), GA102 whitepaper v2 (3090), Ada GPU
//! architecture whitepaper v2 (4090), RTX Blackwell whitepaper (5090), T4 datasheet (2019), V100 datasheet (2020),
//! DGX B200 datasheet (2024, an eighth of the system, half of the sparse rate).
//!
//! Links by the same sheets: NVLink in GB/s of one device, both ways together, and the generation of its 16 lanes of PCI Express. The
//! bridge of GA102 is that of NVIDIA's GA102 whitepaper (four links of 14.0625 GB/s each way); A100 40GB stands for the SXM module.

use serde::Serialize;

use super::PredictError;
use crate::recipe::Precision;

/// NVLink of a device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct NvLink {
    pub generation: u8,
    /// Bytes a second of one device, both ways together, as data sheets count.
    pub both_ways_bytes_per_s: f64,
    /// Whether it is a bridge between two cards, which is bought apart.
    pub is_bridge: bool,
}

/// One device of the table.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DataSheet {
    pub name: &'static str,
    pub memory_bytes: u64,
    /// Bytes a second.
    pub bandwidth: f64,
    /// FLOP/s of the matrix units, F32 accumulation.
    pub matrix: f64,
    /// FLOP/s in plain FP32.
    pub f32: f64,
    /// Whether the matrix units take BF16.
    pub has_bf16: bool,
    /// Times the rate of `matrix` at which signed bytes are multiplied.
    pub byte_rate: f64,
    /// Generation of its 16 lanes of PCI Express.
    pub pcie_generation: u8,
    /// NVLink to other such devices, where it has one.
    pub nvlink: Option<NvLink>,
    pub source: &'static str,
}

impl DataSheet {
    /// FLOP/s of products in the compute dtype of `precision`.
    pub fn peak_flops(&self, precision: Precision) -> f64 {
        match precision.compute() {
            Precision::Fp32 => self.f32,
            Precision::Bf16 if !self.has_bf16 => self.f32,
            _ => self.matrix,
        }
    }
}

const GIB: u64 = 1 << 30;

const fn sheet(name: &'static str, gib: u64, gb_per_s: f64, matrix: f64, f32: f64, source: &'static str) -> DataSheet {
    DataSheet {
        name,
        memory_bytes: gib * GIB,
        bandwidth: gb_per_s * 1e9,
        matrix: matrix * 1e12,
        f32: f32 * 1e12,
        has_bf16: true,
        byte_rate: 2.0,
        pcie_generation: 4,
        nvlink: None,
        source,
    }
}

const fn without_bf16(sheet: DataSheet) -> DataSheet {
    DataSheet {
        has_bf16: false,
        ..sheet
    }
}

/// Sheet of a device with PCI Express of another generation than the fourth.
const fn with_pcie(pcie_generation: u8, sheet: DataSheet) -> DataSheet {
    DataSheet {
        pcie_generation,
        ..sheet
    }
}

/// Sheet of a device with NVLink between all that are in a host, at so many GB/s both ways.
const fn with_nvlink(generation: u8, gb_per_s: f64, sheet: DataSheet) -> DataSheet {
    DataSheet {
        nvlink: Some(NvLink {
            generation,
            both_ways_bytes_per_s: gb_per_s * 1e9,
            is_bridge: false,
        }),
        ..sheet
    }
}

/// Sheet of a card that a bridge may join to a second one, at so many GB/s both ways.
const fn with_bridge(generation: u8, gb_per_s: f64, sheet: DataSheet) -> DataSheet {
    DataSheet {
        nvlink: Some(NvLink {
            generation,
            both_ways_bytes_per_s: gb_per_s * 1e9,
            is_bridge: true,
        }),
        ..sheet
    }
}

/// Sheet of a device that sums 16 bits in F32 at half the rate of its units, or has no rate of bytes.
const fn with_byte_rate(byte_rate: f64, sheet: DataSheet) -> DataSheet {
    DataSheet { byte_rate, ..sheet }
}

/// The table. GB/s, then TFLOP/s of matrix units and of FP32.
pub const DEVICES: [DataSheet; 20] = [
    with_nvlink(
        3,
        600.0,
        sheet("A100 40GB", 40, 1555.0, 312.0, 19.5, "NVIDIA A100 datasheet, 2021"),
    ),
    with_nvlink(
        3,
        600.0,
        sheet(
            "A100 80GB",
            80,
            2039.0,
            312.0,
            19.5,
            "NVIDIA A100 datasheet, 2021 (SXM)",
        ),
    ),
    with_bridge(
        3,
        600.0,
        sheet(
            "A100 80GB PCIe",
            80,
            1935.0,
            312.0,
            19.5,
            "NVIDIA A100 datasheet, 2021 (PCIe)",
        ),
    ),
    with_pcie(
        5,
        with_nvlink(
            4,
            900.0,
            sheet("H100 SXM", 80, 3350.0, 989.4, 66.9, "NVIDIA H100 datasheet, 2023"),
        ),
    ),
    with_pcie(
        5,
        with_bridge(
            4,
            600.0,
            sheet(
                "H100 PCIe",
                80,
                2000.0,
                756.0,
                51.0,
                "NVIDIA H100 datasheet, 2022 (PCIe)",
            ),
        ),
    ),
    with_pcie(
        5,
        with_bridge(
            4,
            600.0,
            sheet("H100 NVL", 94, 3900.0, 835.0, 60.0, "NVIDIA H100 datasheet, 2023 (NVL)"),
        ),
    ),
    with_pcie(
        5,
        with_nvlink(
            4,
            900.0,
            sheet("H200", 141, 4800.0, 989.4, 66.9, "NVIDIA H200 datasheet, 2024 (SXM)"),
        ),
    ),
    with_pcie(
        5,
        with_nvlink(
            5,
            1800.0,
            sheet(
                "B200",
                180,
                8000.0,
                2250.0,
                75.0,
                "NVIDIA DGX B200 datasheet, 2024, an eighth",
            ),
        ),
    ),
    sheet("L4", 24, 300.0, 121.0, 30.3, "NVIDIA L4 datasheet, 2023"),
    sheet("L40S", 48, 864.0, 362.05, 91.6, "NVIDIA L40S datasheet, 2023"),
    sheet("A10", 24, 600.0, 125.0, 31.2, "NVIDIA A10 datasheet, 2021"),
    with_bridge(
        3,
        112.5,
        sheet("A40", 48, 696.0, 149.7, 37.4, "NVIDIA A40 datasheet, 2021"),
    ),
    with_bridge(
        3,
        112.5,
        sheet("RTX A6000", 48, 768.0, 154.8, 38.7, "NVIDIA RTX A6000 datasheet, 2021"),
    ),
    sheet(
        "RTX 6000 Ada",
        48,
        960.0,
        364.2,
        91.1,
        "NVIDIA RTX 6000 Ada datasheet, 2023",
    ),
    with_byte_rate(
        4.0,
        with_bridge(
            3,
            112.5,
            sheet("RTX 3090", 24, 936.0, 71.0, 35.6, "NVIDIA GA102 whitepaper v2, table 9"),
        ),
    ),
    with_byte_rate(
        4.0,
        sheet(
            "RTX 4090",
            24,
            1008.0,
            165.2,
            82.6,
            "NVIDIA Ada architecture whitepaper v2, table 2",
        ),
    ),
    with_byte_rate(
        4.0,
        with_pcie(
            5,
            sheet(
                "RTX 5090",
                32,
                1792.0,
                209.5,
                104.8,
                "NVIDIA RTX Blackwell whitepaper, 2025",
            ),
        ),
    ),
    without_bf16(with_pcie(
        3,
        sheet("T4", 16, 320.0, 65.0, 8.1, "NVIDIA T4 datasheet, 2019"),
    )),
    with_byte_rate(
        0.5,
        without_bf16(with_pcie(
            3,
            with_nvlink(
                2,
                300.0,
                sheet(
                    "V100 16GB",
                    16,
                    900.0,
                    125.0,
                    15.7,
                    "NVIDIA V100 datasheet, 2020 (SXM2)",
                ),
            ),
        )),
    ),
    with_byte_rate(
        0.5,
        without_bf16(with_pcie(
            3,
            with_nvlink(
                2,
                300.0,
                sheet(
                    "V100 32GB",
                    32,
                    900.0,
                    125.0,
                    15.7,
                    "NVIDIA V100 datasheet, 2020 (SXM2)",
                ),
            ),
        )),
    ),
];

/// The device of that name; case, spaces, dashes and the maker's name do not count, and the end may be left out where
/// only one device is left (`h200 sxm` is no such name, `A6000` is).
///
/// # Errors
/// [`PredictError::UnknownDevice`], with the names that there are.
pub fn device(name: &str) -> Result<&'static DataSheet, PredictError> {
    let wanted = plain(name);
    let same = DEVICES.iter().find(|device| plain(device.name) == wanted);
    let ending = || {
        let mut ending = DEVICES
            .iter()
            .filter(|device| !wanted.is_empty() && plain(device.name).contains(&wanted));
        let first = ending.next();
        first.filter(|_| ending.next().is_none())
    };
    same.or_else(ending).ok_or_else(|| PredictError::UnknownDevice {
        name: name.to_owned(),
        nearest: nearest(&wanted),
        known: DEVICES.map(|device| device.name).join(", "),
    })
}

/// Least similarity of names, in [0, 1], with which one is offered for the other.
const ALIKE: f64 = 0.5;

/// The device whose name looks most like a plain one.
fn nearest(wanted: &str) -> Option<&'static str> {
    let scored = DEVICES
        .iter()
        .map(|device| (similarity(wanted, &plain(device.name)), device.name));
    let best = scored.max_by(|one, other| one.0.total_cmp(&other.0))?;
    (best.0 >= ALIKE).then_some(best.1)
}

/// Pairs of neighbouring characters that two names share, over all of them (Dice's coefficient).
fn similarity(one: &str, other: &str) -> f64 {
    let pairs = |name: &str| -> Vec<[u8; 2]> { name.as_bytes().windows(2).map(|pair| [pair[0], pair[1]]).collect() };
    let (own, mut others) = (pairs(one), pairs(other));
    let all = (own.len() + others.len()).max(1);
    let mut shared = 0;
    for pair in &own {
        if let Some(at) = others.iter().position(|other| other == pair) {
            others.swap_remove(at);
            shared += 1;
        }
    }
    2.0 * f64::from(shared) / all as f64
}

/// Names that drivers have for devices that the table has under another name, both plain.
const DRIVER_NAMES: [(&str, &str); 8] = [
    ("a100sxm480gb", "A100 80GB"),
    ("a100sxm440gb", "A100 40GB"),
    ("a100pcie40gb", "A100 40GB"),
    ("h10080gbhbm3", "H100 SXM"),
    ("rtx6000adageneration", "RTX 6000 Ada"),
    ("v100sxm216gb", "V100 16GB"),
    ("v100sxm232gb", "V100 32GB"),
    ("v100pcie32gb", "V100 32GB"),
];

/// The device that a driver calls `name`, where the table has it: `NVIDIA H100 80GB HBM3` is the H100 SXM.
pub fn device_of_driver(name: &str) -> Option<&'static DataSheet> {
    let wanted = plain(name);
    let known = DRIVER_NAMES.iter().find(|(driver, _)| *driver == wanted);
    let own = known.map_or(wanted.as_str(), |(_, own)| own);
    DEVICES.iter().find(|device| plain(device.name) == plain(own))
}

fn plain(name: &str) -> String {
    let lower = name
        .to_lowercase()
        .replace("nvidia", "")
        .replace("geforce", "")
        .replace("tesla", "");
    lower.chars().filter(|c| c.is_ascii_alphanumeric()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_as_people_write_them() {
        for (written, name) in [
            ("A100 80GB", "A100 80GB"),
            ("a100-80gb", "A100 80GB"),
            ("NVIDIA GeForce RTX 4090", "RTX 4090"),
            ("A6000", "RTX A6000"),
            ("h100 sxm", "H100 SXM"),
            ("t4", "T4"),
        ] {
            assert_eq!(device(written).unwrap().name, name, "{written}");
        }
    }

    #[test]
    fn drivers_names_are_those_of_one_device_or_none() {
        for (driver, name) in [
            ("NVIDIA H100 80GB HBM3", Some("H100 SXM")),
            ("NVIDIA H100 PCIe", Some("H100 PCIe")),
            ("NVIDIA H200", Some("H200")),
            ("NVIDIA A100-SXM4-80GB", Some("A100 80GB")),
            ("NVIDIA A100 80GB PCIe", Some("A100 80GB PCIe")),
            ("NVIDIA GeForce RTX 4090", Some("RTX 4090")),
            ("Tesla T4", Some("T4")),
            ("NVIDIA H20", None),
            ("NVIDIA H200 NVL", None),
        ] {
            assert_eq!(device_of_driver(driver).map(|sheet| sheet.name), name, "{driver}");
        }
        assert!(
            DRIVER_NAMES
                .iter()
                .all(|(_, own)| DEVICES.iter().any(|device| device.name == *own))
        );
    }

    #[test]
    fn the_nearest_name_is_offered_where_one_looks_like_it() {
        let nearest = |name: &str| match device(name).unwrap_err() {
            PredictError::UnknownDevice { nearest, .. } => nearest,
            error => panic!("{error}"),
        };
        assert_eq!(nearest("A100 48GB"), Some("A100 40GB"));
        assert_eq!(nearest("RTX 4095"), Some("RTX 4090"));
        assert_eq!(nearest("TPU v5"), None);
    }

    #[test]
    fn an_unknown_or_ambiguous_name_tells_what_there_is() {
        for name in ["TPU v5", "", "H100", "V100"] {
            let error = device(name).unwrap_err().to_string();
            assert!(error.contains("A100 80GB, "), "{error}");
        }
    }
}
