//! Benches of the ops: each fused form beside its plain-candle form, at the shapes of two models.
//!
//! `cargo bench --bench ops -- matmul` runs one group. The counters read as bytes or floating-point operations per second
//! (`Gitem/s` of a product is GFLOP/s).

mod attention;
mod elementwise;
mod grouped;
mod int8;
mod loss_head;
mod matmul;
mod mixers;

use candle_core::{DType, Device, Tensor};
use peft_tune_engine::profile::{CountingAllocator, HostMemory};
use peft_tune_kernels::{Kernels, set_kernels};

/// Counts every allocation, so that peak memory is exact.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

fn main() {
    // As training does: without it page faults are most of what is measured.
    HostMemory::keep_freed();
    divan::main();
}

/// Shapes of a decoder.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    pub name: &'static str,
    pub hidden: usize,
    pub intermediate: usize,
    pub query_heads: usize,
    pub key_heads: usize,
    pub head_dim: usize,
    pub vocabulary: usize,
}

/// A model of 135 million parameters.
pub const LARGE: Model = Model {
    name: "135M",
    hidden: 576,
    intermediate: 1536,
    query_heads: 9,
    key_heads: 3,
    head_dim: 64,
    vocabulary: 49_152,
};

/// A model of five million parameters.
pub const SMALL: Model = Model {
    name: "5M",
    hidden: 256,
    intermediate: 688,
    query_heads: 8,
    key_heads: 4,
    head_dim: 32,
    vocabulary: 4096,
};

/// Tokens of a micro-batch: four documents of 256.
pub const TOKENS: usize = 1024;

/// One line of a bench.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub model: Model,
    pub dtype: DType,
    pub kernels: Kernels,
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {:?}", self.model.name, self.dtype.as_str(), self.kernels)
    }
}

/// Every model in F32 and BF16, in both forms.
pub fn cases() -> impl Iterator<Item = Case> {
    [LARGE, SMALL].into_iter().flat_map(|model| {
        [DType::F32, DType::BF16].into_iter().flat_map(move |dtype| {
            [Kernels::Fused, Kernels::Reference]
                .into_iter()
                .map(move |kernels| Case { model, dtype, kernels })
        })
    })
}

impl Case {
    /// Random values in the dtype of the case.
    pub fn random(&self, shape: &[usize]) -> Tensor {
        let values = Tensor::randn(0f32, 0.3, shape, &Device::Cpu).expect("the shape is small");
        values.to_dtype(self.dtype).expect("every float dtype converts")
    }

    /// Times `op` in the form of the case.
    pub fn time<T>(
        &self,
        bencher: divan::Bencher<'_, '_>,
        counter: impl divan::counter::Counter,
        op: impl Fn() -> T + Sync,
    ) {
        set_kernels(self.kernels);
        bencher.counter(counter).bench(op);
        set_kernels(Kernels::Fused);
    }

    /// Bytes of `elements` elements.
    pub fn bytes(&self, elements: usize) -> divan::counter::BytesCount {
        divan::counter::BytesCount::new(elements * self.dtype.size_in_bytes())
    }
}

/// Floating-point operations.
pub fn operations(count: usize) -> divan::counter::ItemsCount {
    divan::counter::ItemsCount::new(count)
}
