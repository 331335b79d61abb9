//! Links between the devices of one host: what makers publish of them, and what collectives are taken to reach.
//!
//! Data sheets count NVLink both ways together; a collective sends and receives at once, so that half of it counts. Of one way
//! three quarters are taken as reached by NVLink and 60% by PCI Express: NCCL's tests are reported at 230 to 250 of the 300 GB/s
//! of an A100, and at 35 to 45 of the 63 GB/s of 16 lanes of generation 5
//! (<https://docs.alayanew.com/en/docs/tech-blog/2026-05-06-nccl-tests>). No such rate has been measured here.
//!
//! | n | devices |
//! |---|---|
//! | b | bytes of the whole tensor |
//! | r | bytes a second, one way, that a collective reaches |
//!
//! Each device of a ring sends and receives b (n - 1) / n in a gather, and twice that in a sum.

use std::fmt;

use serde::Serialize;

use super::data_sheet::{DataSheet, NvLink};
use super::stack::HOST;

/// Kind of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkKind {
    #[serde(rename = "nvlink")]
    NvLink { generation: u8 },
    /// 16 lanes of PCI Express.
    Pcie { generation: u8 },
    /// Memory of a host whose processes are the devices.
    HostMemory,
}

/// Link between the devices of one host.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Link {
    pub kind: LinkKind,
    /// Bytes a second, one way, that collectives are taken to reach.
    pub bytes_per_s: f64,
    /// A bridge that two such cards may have, and that is not counted.
    pub uncounted_bridge: Option<NvLink>,
}

/// Share of one way of NVLink that collectives reach.
const NVLINK_REACHED: f64 = 0.75;
/// Share of one way of PCI Express that collectives reach.
const PCIE_REACHED: f64 = 0.6;

/// Bytes a second of 16 lanes of a generation of PCI Express, one way: 8, 16 and 32 GT/s a lane in codes of 128 in 130 bits.
fn lanes_bytes_per_s(generation: u8) -> f64 {
    let transfers = 1e9 * 2.0_f64.powi(i32::from(generation));
    16.0 * transfers * 128.0 / 130.0 / 8.0
}

impl DataSheet {
    /// The link between several such devices in one host. A bridge joins two cards, and need not be there: it is not counted.
    pub fn link(&self) -> Link {
        let pcie = Link {
            kind: LinkKind::Pcie {
                generation: self.pcie_generation,
            },
            bytes_per_s: PCIE_REACHED * lanes_bytes_per_s(self.pcie_generation),
            uncounted_bridge: self.nvlink,
        };
        match self.nvlink {
            // Each byte is written once and read once.
            _ if self.name == HOST => Link {
                kind: LinkKind::HostMemory,
                bytes_per_s: self.bandwidth / 2.0,
                uncounted_bridge: None,
            },
            Some(nvlink) if !nvlink.is_bridge => Link {
                kind: LinkKind::NvLink {
                    generation: nvlink.generation,
                },
                bytes_per_s: NVLINK_REACHED * nvlink.both_ways_bytes_per_s / 2.0,
                uncounted_bridge: None,
            },
            Some(_) | None => pcie,
        }
    }
}

impl Link {
    /// Seconds in which each of `devices` gets the parts of the others of a tensor of `bytes`.
    pub(super) fn gather_s(&self, bytes: f64, devices: u64) -> f64 {
        let devices = devices.max(1) as f64;
        bytes * (devices - 1.0) / devices / self.bytes_per_s
    }

    /// Seconds in which a tensor of `bytes` is added up over `devices`.
    pub(super) fn sum_s(&self, bytes: f64, devices: u64) -> f64 {
        2.0 * self.gather_s(bytes, devices)
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            LinkKind::NvLink { generation } => write!(f, "NVLink {generation}")?,
            LinkKind::Pcie { generation } => write!(f, "PCI Express {generation}")?,
            LinkKind::HostMemory => f.write_str("the host's memory")?,
        }
        write!(f, " at {:.0} GB/s one way", self.bytes_per_s / 1e9)?;
        match self.uncounted_bridge {
            Some(bridge) => write!(
                f,
                ", without the bridge of NVLink {} that two cards may have",
                bridge.generation
            ),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predict::{DEVICES, device};

    fn link(name: &str) -> Link {
        device(name).unwrap().link()
    }

    #[test]
    fn links_are_those_of_the_data_sheets() {
        // Half of what the sheet counts both ways, of which three quarters.
        for (name, generation, gb_per_s) in [
            ("V100 32GB", 2, 112.5),
            ("A100 80GB", 3, 225.0),
            ("H100 SXM", 4, 337.5),
            ("H200", 4, 337.5),
            ("B200", 5, 675.0),
        ] {
            let link = link(name);
            assert_eq!(link.kind, LinkKind::NvLink { generation }, "{name}");
            assert!((link.bytes_per_s / 1e9 - gb_per_s).abs() < 1e-9, "{name}: {link}");
        }
        for (name, generation, gb_per_s) in [("T4", 3, 9.45), ("L4", 4, 18.9), ("RTX 5090", 5, 37.8)] {
            let link = link(name);
            assert_eq!(link.kind, LinkKind::Pcie { generation }, "{name}");
            assert!((link.bytes_per_s / 1e9 - gb_per_s).abs() < 0.01, "{name}: {link}");
            assert_eq!(link.uncounted_bridge, None);
        }
    }

    #[test]
    fn a_bridge_is_told_and_not_counted() {
        for name in [
            "RTX 3090",
            "RTX A6000",
            "A40",
            "A100 80GB PCIe",
            "H100 PCIe",
            "H100 NVL",
        ] {
            let text = link(name).to_string();
            assert!(
                text.starts_with("PCI Express ") && text.contains("without the bridge"),
                "{text}"
            );
        }
        assert_eq!(link("RTX 4090").to_string(), "PCI Express 4 at 19 GB/s one way");
        assert_eq!(link("H100 SXM").to_string(), "NVLink 4 at 338 GB/s one way");
    }

    #[test]
    fn a_ring_sends_all_but_ones_own_part_and_a_sum_goes_round_twice() {
        for sheet in &DEVICES {
            let link = sheet.link();
            let rate = link.bytes_per_s;
            assert!((link.gather_s(4.0 * rate, 4) - 3.0).abs() < 1e-9, "{}", sheet.name);
            assert!((link.sum_s(4.0 * rate, 2) - 4.0).abs() < 1e-9, "{}", sheet.name);
            assert_eq!(link.sum_s(rate, 1), 0.0, "{}", sheet.name);
        }
    }
}
