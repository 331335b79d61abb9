//! Attention: in which forms its kernels are there, and what a block of each is.

use candle_core::Device;

use crate::AttentionKernels;
use crate::gpu::{Capability, Header, OPERANDS, STAGES, Source, WARPGROUP, capability, has_warpgroups, source};

const PARTS: Header = Header {
    name: "attention_parts.cuh",
    text: include_str!("attention_parts.cuh"),
};

pub(super) static PLAIN: Source = source!("attention_plain", PARTS);

const TILED: Header = Header {
    name: "attention_tiled.cuh",
    text: include_str!("attention_tiled.cuh"),
};

static AMPLE: Source = source!("attention", PARTS, OPERANDS, TILED);

static SCARCE: Source = source!("attention_ada", PARTS, OPERANDS, TILED);

static WARPGROUPS: Source = source!("attention_hopper", PARTS, WARPGROUP, STAGES);

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
    /// Form for any dtype and any head.
    Plain,
    /// Tensor cores, each warp by itself.
    Tiled(Shared, Tiles),
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
    /// The tiled form for heads of `head_dim` elements on `device`.
    pub(super) fn tiled(head_dim: usize, device: &Device) -> Option<Self> {
        Self::tiled_with(Shared::of(capability(device)), head_dim)
    }

    /// The tiled form for heads of `head_dim` elements where a multiprocessor has so much shared memory.
    pub(super) fn tiled_with(shared: Shared, head_dim: usize) -> Option<Self> {
        let tiles = shared.tiles().into_iter().find(|tiles| head_dim <= tiles.head_dim);
        tiles.map(|tiles| Self::Tiled(shared, tiles))
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
        hopper.into_iter().chain(Self::tiled(head_dim, device)).collect()
    }

    /// Kernels that the form belongs to.
    pub fn kernels(self) -> AttentionKernels {
        match self {
            Self::Plain => AttentionKernels::Plain,
            Self::Tiled(..) => AttentionKernels::Tiled,
            Self::Hopper(_) => AttentionKernels::Hopper,
        }
    }

    /// Name for people.
    pub fn name(self) -> &'static str {
        self.kernels().name()
    }

    /// Block of threads of `kernel`; its name goes around the element's.
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
            Self::Tiled(shared, tiles) => {
                let tile = tiles.of(kernel);
                Block {
                    source: shared.source(),
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
                threads: Warpgroups::threads(kernel),
                shared_bytes: form.shared_bytes(kernel),
            },
        }
    }
}

/// How much shared memory a multiprocessor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shared {
    /// 164 KiB or more: two blocks of 67 to 80 KiB.
    Ample,
    /// 100 KiB.
    Scarce,
}

impl Shared {
    /// Shared memory of GPUs of a capability (CUDA programming guide, technical specifications); without one, that of
    /// an A100.
    pub(super) fn of(capability: Option<Capability>) -> Self {
        match capability {
            Some((8, 6 | 9) | (12, _)) => Self::Scarce,
            _ => Self::Ample,
        }
    }

    fn tiles(self) -> [Tiles; 4] {
        match self {
            Self::Ample => AMPLE_TILES,
            Self::Scarce => SCARCE_TILES,
        }
    }

    fn source(self) -> &'static Source {
        match self {
            Self::Ample => &AMPLE,
            Self::Scarce => &SCARCE,
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

const AMPLE_TILES: [Tiles; 4] = [
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

/// Eight warps of a multiprocessor have to do with 99 KiB: in two blocks, or in one of eight warps where two tiles of what is met would not
/// fit two blocks. The gradients for heads above 128 have four warps.
const SCARCE_TILES: [Tiles; 4] = [
    Tiles {
        head_dim: 64,
        forward: tile(4, 2, 64, 1),
        query: tile(4, 2, 16, 2),
        key: tile(4, 2, 32, 2),
    },
    Tiles {
        head_dim: 96,
        forward: tile(4, 2, 48, 1),
        query: tile(8, 1, 32, 2),
        key: tile(8, 1, 32, 2),
    },
    Tiles {
        head_dim: 128,
        forward: tile(4, 1, 48, 1),
        query: tile(8, 1, 16, 2),
        key: tile(8, 1, 32, 2),
    },
    Tiles {
        head_dim: 256,
        forward: tile(8, 1, 32, 1),
        query: tile(4, 1, 16, 1),
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
    /// Keys that a block meets at a time in the gradient of queries.
    met_keys: usize,
    /// Queries that it meets at a time in the gradient of keys.
    met_queries: usize,
}

const HOPPER: [Warpgroups; 2] = [
    Warpgroups {
        head_dim: 64,
        met_keys: 64,
        met_queries: 64,
    },
    Warpgroups {
        head_dim: 128,
        met_keys: 64,
        met_queries: 64,
    },
];

impl Warpgroups {
    /// Rows of a block, and keys that it meets at a time in the forward pass.
    const ROWS: usize = 128;
    /// Tiles of what is met in shared memory, in the backward pass.
    const STAGES: usize = 4;

    /// Two groups of four warps, and in the backward pass one more that copies.
    fn threads(kernel: Kernel) -> usize {
        match kernel {
            Kernel::Forward => 256,
            Kernel::QueryGradient | Kernel::KeyGradient => 384,
        }
    }

    /// Shared memory of a block: rows of its own that do not lie in registers, tiles of what it meets, and room to begin where a panel
    /// may. In the backward pass each tile has two barriers, and in the gradient of keys three numbers for each row and one for itself.
    fn shared_bytes(self, kernel: Kernel) -> usize {
        let (row, room) = (2 * self.head_dim, 1024);
        match kernel {
            Kernel::Forward => (Self::ROWS + 4 * Self::ROWS) * row + room,
            Kernel::QueryGradient => Self::STAGES * (2 * self.met_keys * row + 16) + room,
            Kernel::KeyGradient => {
                let of_stage = 2 * self.met_queries * row + 12 * self.met_queries + 16 + 4;
                2 * Self::ROWS * row + Self::STAGES * of_stage + room
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNELS: [Kernel; 3] = [Kernel::Forward, Kernel::QueryGradient, Kernel::KeyGradient];

    /// Technical specifications of the CUDA programming guide: shared memory of a multiprocessor and of a block in KiB, warps of a
    /// multiprocessor.
    const SPECIFICATIONS: [(Capability, usize, usize, usize); 7] = [
        ((8, 0), 164, 163, 64),
        ((8, 6), 100, 99, 48),
        ((8, 7), 164, 163, 48),
        ((8, 9), 100, 99, 48),
        ((9, 0), 228, 227, 64),
        ((10, 0), 228, 227, 64),
        ((12, 0), 100, 99, 48),
    ];

    /// Registers of a multiprocessor, and those that a thread takes at most.
    const REGISTERS: (usize, usize) = (64 << 10, 256);

    /// Registers that a thread begins with at most: those for eight warps, or for one block where it has more.
    fn registers(block: &Block) -> usize {
        (REGISTERS.0 / block.threads / 8 * 8).min(REGISTERS.1)
    }

    /// Warps of a kernel that a multiprocessor holds at once. The kernels may use any number of registers that their launch bounds leave
    /// them.
    fn resident_warps(block: &Block, shared_kib: usize, most: usize) -> usize {
        let warps = block.threads / 32;
        // The system takes 1 KiB of each block.
        let by_shared = (shared_kib << 10) / (block.shared_bytes + 1024);
        let by_registers = REGISTERS.0 / registers(block) / block.threads;
        by_shared.min(by_registers).min(most / warps) * warps
    }

    #[test]
    fn every_gpu_holds_eight_warps_of_every_kernel() {
        for (capability, shared_kib, block_kib, most) in SPECIFICATIONS {
            let shared = Shared::of(Some(capability));
            let hopper = HOPPER.map(Form::Hopper).into_iter().filter(|_| capability == (9, 0));
            let forms: Vec<Form> = shared
                .tiles()
                .map(|tiles| Form::Tiled(shared, tiles))
                .into_iter()
                .chain(hopper)
                .collect();
            for (form, kernel) in forms.into_iter().flat_map(|form| KERNELS.map(|kernel| (form, kernel))) {
                let block = form.block(kernel);
                assert!(block.shared_bytes <= block_kib << 10, "{capability:?}: {block:?}");
                // Rows of 512 bytes: there is no room for more.
                let is_widest = matches!(form, Form::Tiled(_, tiles) if tiles.head_dim == 256);
                let expected = match (is_widest, kernel, shared) {
                    (true, Kernel::QueryGradient, _) | (true, Kernel::KeyGradient, Shared::Scarce) => 4,
                    _ => 8,
                };
                let warps = resident_warps(&block, shared_kib, most);
                assert!(warps >= expected, "{capability:?}: {warps} warps of {block:?}");
            }
        }
    }

    #[test]
    fn tiles_for_much_shared_memory_leave_half_of_ada_idle() {
        let form = Form::tiled_with(Shared::Ample, 128).unwrap();
        for kernel in KERNELS {
            assert_eq!(resident_warps(&form.block(kernel), 100, 48), 4);
        }
    }

    #[test]
    fn rust_and_kernels_have_the_same_tiles() {
        let text = |tile: Tile, stages: bool| {
            let stages = if stages {
                format!(", {}", tile.stages)
            } else {
                String::new()
            };
            format!("({}, {}, {}{stages})", tile.warps, tile.row_tiles, tile.met)
        };
        for shared in [Shared::Ample, Shared::Scarce] {
            for tiles in shared.tiles() {
                let (forward, query, key) = (
                    text(tiles.forward, false),
                    text(tiles.query, true),
                    text(tiles.key, true),
                );
                let row = format!("TILED(T, E, {}, {forward}, {query}, {key})", tiles.head_dim);
                assert!(shared.source().text.contains(&row), "{}: {row}", shared.source().name);
            }
        }
    }

    #[test]
    fn rust_and_the_kernels_for_hopper_have_the_same_blocks() {
        let number = |name: &str| -> usize {
            let mut lines = WARPGROUPS.text.lines();
            let value = lines.find_map(|line| line.strip_prefix(&format!("#define {name} ")));
            value.unwrap().parse().unwrap()
        };
        assert_eq!(number("M"), Warpgroups::ROWS);
        assert_eq!(number("STAGES"), Warpgroups::STAGES);
        assert_eq!(number("THREADS"), Warpgroups::threads(Kernel::Forward));
        for form in HOPPER {
            let row = |name| {
                format!(
                    "HOPPER({name}, {name}, {}, {}, {})",
                    form.head_dim, form.met_keys, form.met_queries
                )
            };
            assert!(["bf16", "f16"].map(row).iter().all(|row| WARPGROUPS.text.contains(row)));
            for kernel in [Kernel::QueryGradient, Kernel::KeyGradient] {
                let block = Form::Hopper(form).block(kernel);
                assert_eq!(block.threads, number("THREADS") + number("COPYING"));
                // What those who copy give back is enough for the others.
                let wanted = number("THREADS") * number("MUCH") + number("COPYING") * number("LITTLE");
                assert!(wanted <= block.threads * registers(&block));
            }
        }
    }
}
