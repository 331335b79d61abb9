//! Attention: in which forms its kernels are there, and what a block of each is.

use candle_core::{DType, Device, Result, Tensor};

use super::first_use::is_right;
use crate::gpu::{Header, OPERANDS, Source, WARPGROUP, has_warpgroups, pack_size, source};

const PARTS: Header = Header {
    name: "attention_parts.cuh",
    text: include_str!("attention_parts.cuh"),
};

pub(super) static PLAIN: Source = source!("attention_plain", PARTS);

static TILED: Source = source!("attention", PARTS, OPERANDS);

static WARPGROUPS: Source = source!("attention_hopper", PARTS, WARPGROUP);

/// Largest head that the kernels take.
pub(super) const MAX_HEAD: usize = 256;

/// The kernels of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kernel {
    Forward,
    QueryGradient,
    KeyGradient,
}

impl Kernel {
    fn name(self) -> &'static str {
        match self {
            Self::Forward => "attention",
            Self::QueryGradient => "attention_query",
            Self::KeyGradient => "attention_key",
        }
    }
}

/// A form of the kernels.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// Any dtype, any head.
    Plain,
    /// Tensor cores, each warp by itself.
    Tiled(Tiles),
    /// Tensor cores, four warps together.
    Hopper(Warpgroups),
}

/// A kernel's launch, but for the number of its blocks.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub source: &'static Source,
    /// The kernel without its element.
    pub names: [String; 2],
    /// Rows of a block.
    pub rows: usize,
    pub threads: usize,
    pub shared_bytes: usize,
}

impl Form {
    /// The form for these tensors, q first, where they are.
    pub(super) fn of(tensors: &[&Tensor]) -> Result<Self> {
        let (q, head_dim) = (tensors[0], tensors[0].dim(2)?);
        Ok(match q.dtype() != DType::F32 && pack_size(head_dim, tensors) == 8 {
            true => Self::on_tensor_cores(head_dim, q.dtype(), q.device()),
            false => Self::Plain,
        })
    }

    /// The form on tensor cores for heads of `head_dim` elements. Where it is Hopper's, the first call tries it.
    pub(super) fn on_tensor_cores(head_dim: usize, dtype: DType, device: &Device) -> Self {
        let hopper =
            Self::hopper(head_dim).filter(|form| has_warpgroups(device) && is_right(*form, head_dim, dtype, device));
        hopper.or_else(|| Self::tiled(head_dim)).unwrap_or(Self::Plain)
    }

    /// The tiled form for heads of `head_dim` elements.
    pub(super) fn tiled(head_dim: usize) -> Option<Self> {
        TILES
            .into_iter()
            .find(|tiles| head_dim <= tiles.head_dim)
            .map(Self::Tiled)
    }

    /// Hopper's form for heads of `head_dim` elements.
    pub(super) fn hopper(head_dim: usize) -> Option<Self> {
        HOPPER
            .into_iter()
            .find(|form| head_dim <= form.head_dim)
            .map(Self::Hopper)
    }

    /// The forms on tensor cores that `device` has for heads of `head_dim` elements.
    pub fn all(head_dim: usize, device: &Device) -> Vec<Self> {
        let hopper = Self::hopper(head_dim).filter(|_| has_warpgroups(device));
        hopper.into_iter().chain(Self::tiled(head_dim)).collect()
    }

    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Tiled(_) => "tiled",
            Self::Hopper(_) => "hopper",
        }
    }

    /// What a block of `kernel` is; its name goes around the element's.
    pub(super) fn block(self, kernel: Kernel) -> Block {
        let name = kernel.name();
        match self {
            Self::Plain => Block {
                source: &PLAIN,
                names: [format!("{name}_plain_"), String::new()],
                rows: 4,
                threads: 128,
                shared_bytes: 0,
            },
            Self::Tiled(tiles) => {
                let tile = tiles.of(kernel);
                Block {
                    source: &TILED,
                    names: [format!("{name}_"), format!("_{}", tiles.head_dim)],
                    rows: tile.rows(kernel),
                    threads: 32 * tile.warps,
                    shared_bytes: tile.shared_bytes(kernel, tiles.head_dim),
                }
            }
            Self::Hopper(form) => Block {
                source: &WARPGROUPS,
                names: [format!("{name}_hopper_"), format!("_{}", form.head_dim)],
                rows: Warpgroups::ROWS,
                threads: 256,
                shared_bytes: form.shared_bytes(kernel),
            },
        }
    }
}

/// How the kernels for heads of up to `head_dim` divide their work, as the instances in the kernel file have it.
#[derive(Clone, Copy, Debug)]
pub struct Tiles {
    head_dim: usize,
    forward: Tile,
    query: Tile,
    key: Tile,
}

/// A kernel's block.
#[derive(Clone, Copy, Debug)]
struct Tile {
    warps: usize,
    /// Rows of a warp, 16 in each.
    row_tiles: usize,
    /// Rows of the other side that it meets at a time.
    met: usize,
    /// Tiles of them in shared memory.
    stages: usize,
}

const fn tile(warps: usize, row_tiles: usize, met: usize, stages: usize) -> Tile {
    Tile {
        warps,
        row_tiles,
        met,
        stages,
    }
}

const TILES: [Tiles; 4] = [
    Tiles {
        head_dim: 64,
        forward: tile(4, 2, 64, 1),
        query: tile(4, 2, 32, 2),
        key: tile(4, 2, 64, 2),
    },
    Tiles {
        head_dim: 96,
        forward: tile(4, 2, 64, 1),
        query: tile(4, 1, 32, 2),
        key: tile(4, 2, 32, 2),
    },
    Tiles {
        head_dim: 128,
        forward: tile(4, 2, 64, 1),
        query: tile(4, 1, 32, 2),
        key: tile(4, 2, 32, 2),
    },
    Tiles {
        head_dim: 256,
        forward: tile(4, 1, 32, 1),
        query: tile(2, 1, 32, 1),
        key: tile(4, 1, 32, 1),
    },
];

impl Tiles {
    fn of(&self, kernel: Kernel) -> Tile {
        match kernel {
            Kernel::Forward => self.forward,
            Kernel::QueryGradient => self.query,
            Kernel::KeyGradient => self.key,
        }
    }
}

impl Tile {
    /// Rows of a block. Two warps share theirs in the gradient of keys.
    fn rows(self, kernel: Kernel) -> usize {
        let groups = match kernel {
            Kernel::Forward | Kernel::QueryGradient => self.warps,
            Kernel::KeyGradient => self.warps / 2,
        };
        groups * self.row_tiles * 16
    }

    /// Shared memory of a block: tensors of its own rows and of those that it meets, and for the gradient of keys the weights
    /// twice and three numbers for each row that it meets.
    fn shared_bytes(self, kernel: Kernel, head_dim: usize) -> usize {
        let (row, met) = (2 * (head_dim + 8), self.stages * self.met);
        let rows = self.rows(kernel);
        match kernel {
            Kernel::Forward => (rows + 2 * met) * row,
            Kernel::QueryGradient => (2 * rows + 2 * met) * row,
            Kernel::KeyGradient => (2 * rows + 2 * met) * row + 2 * rows * 2 * (self.met + 8) + 12 * met,
        }
    }
}

/// Hopper's kernels for heads of up to `head_dim`.
#[derive(Clone, Copy, Debug)]
pub struct Warpgroups {
    head_dim: usize,
    /// Queries that a block meets at a time in the gradient of keys.
    met_queries: usize,
}

const HOPPER: [Warpgroups; 2] = [
    Warpgroups {
        head_dim: 64,
        met_queries: 128,
    },
    Warpgroups {
        head_dim: 128,
        met_queries: 64,
    },
];

impl Warpgroups {
    /// Rows of a block, and keys that it meets at a time.
    const ROWS: usize = 128;

    /// Shared memory of a block: as for tiles, with two tiles of what it meets, and room to begin where a panel may.
    fn shared_bytes(self, kernel: Kernel) -> usize {
        let (row, room) = (2 * self.head_dim, 1024);
        match kernel {
            Kernel::Forward => (Self::ROWS + 4 * Self::ROWS) * row + room,
            Kernel::QueryGradient => (2 * Self::ROWS + 4 * Self::ROWS) * row + room,
            Kernel::KeyGradient => (2 * Self::ROWS + 4 * self.met_queries) * row + 2 * 12 * self.met_queries + room,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNELS: [Kernel; 3] = [Kernel::Forward, Kernel::QueryGradient, Kernel::KeyGradient];

    #[test]
    fn every_block_fits_the_shared_memory_of_its_smallest_gpu() {
        // CUDA programming guide, technical specifications: a block of compute capability 8.6 and 8.9, and of 9.0.
        for (forms, kib) in [
            (TILES.map(Form::Tiled).to_vec(), 99),
            (HOPPER.map(Form::Hopper).to_vec(), 227),
        ] {
            for (form, kernel) in forms.into_iter().flat_map(|form| KERNELS.map(|kernel| (form, kernel))) {
                let block = form.block(kernel);
                assert!(block.shared_bytes <= kib << 10, "{block:?}");
            }
        }
    }
}
