//! Products of BF16, F16 and signed bytes through cuBLASLt: the algorithm is chosen once for a shape and kept.
//!
//! cuBLAS asks its heuristic on each call, and takes workspace of its own as it likes. Here both are settled when a shape is
//! first met, in a workspace whose size does not change, so that later steps allocate nothing. What cuBLASLt has no algorithm
//! for goes to cuBLAS.
//!
//! The heuristic names several algorithms, and its first is not always the fastest. In a training's first steps each is timed on
//! the product itself ([`super::TimedProducts`]); the fastest is kept for the process and, on disk, for later ones. Everything else
//! takes what is known, or the heuristic's first. `PEFT_TUNE_PRODUCTS=first` takes that always.

mod plan;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Write;
use std::time::{Duration, Instant};

use candle_core::cuda_backend::{CudaDevice, WrapErr};
use candle_core::{DType, Result, Tensor};
use cudarc::cublaslt::{result, sys};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, sys as driver};

use super::cache;
use super::gemm::{Gemm, Matrix};
use super::graph;
use super::product_choices::{Choice, Machine, ProductChoices, WayTimes};
use super::runtime::address;
// Of all products: what the library's guide advises for Hopper, and enough for those before it.
use super::scratch::WORKSPACE_BYTES;
use plan::Plan;

/// Shapes that are kept. Without packing each step brings its own number of tokens.
const MOST_PLANS: usize = 4096;

/// Products that an algorithm is timed over, behind two: one that loads its kernels, and one that shows whether it is worth it.
pub(super) const RUNS: u32 = 3;

/// An algorithm whose first two products take so many times the fastest's is not timed further.
const HOPELESS: f32 = 2.0;

/// Part of the first algorithm's time that another has to save: less may be chance.
pub(super) const GAIN: f32 = 0.02;

/// Time that a shape may take before what is left of its algorithms is given up, and all shapes of a process.
pub(super) const SHAPE_BUDGET: Duration = Duration::from_millis(300);
const BUDGET: Duration = Duration::from_secs(10);

thread_local! {
    static TIMES: Cell<bool> = const { Cell::new(false) };
    // Design note: kept by the thread that launches, as the scratch is; the library's handles belong to no thread, but its
    // workspace to one product at a time.
    static LIBRARIES: RefCell<HashMap<usize, Library>> = RefCell::default();
}

/// Key of all that the choice of an algorithm depends on. Sizes and operands as the library has them: by columns, so
/// that c^T = b^T a^T is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    /// (rows, columns, elements between columns) in memory of b, a and c.
    sizes: [(usize, usize, usize); 3],
    transposed: [bool; 2],
    dtype: DType,
    result: DType,
    /// Bytes of which each address is a multiple, up to 256: of b, a, what is added, and c.
    alignments: [u32; 4],
}

/// The library's state on one device.
struct Library {
    handle: sys::cublasLtHandle_t,
    workspace: CudaSlice<u8>,
    /// `None` where there is no algorithm.
    plans: HashMap<Key, Option<Plan>>,
    /// The fastest algorithms of earlier shapes; `None` where the heuristic's first is to be taken.
    choices: Option<ProductChoices>,
    /// Time that was spent on finding them.
    spent: Duration,
}

/// Factors that a product is multiplied by and added to: the bits of a number of the type of its sums.
#[derive(Clone, Copy, Debug)]
struct Factors {
    alpha: u32,
    beta: u32,
    /// Whether the result adds to what lies in its place.
    adds_in_place: bool,
}

/// Addresses of b, a, what is added, and c.
type Addresses = [u64; 4];

/// Lets shapes that this thread meets for the first time be timed, or no longer; then what was found out is written.
pub(super) fn time_new_shapes(wanted: bool) {
    if TIMES.replace(wanted) && !wanted {
        LIBRARIES.with_borrow_mut(|libraries| {
            let choices = libraries.values_mut().filter_map(|library| library.choices.as_mut());
            choices.for_each(ProductChoices::write);
        });
    }
}

/// Puts the product at the end of the device's queue; `false` where the library does not take it. See [`Gemm::run`]; sizes and
/// dtypes have been checked.
pub(super) fn multiply(device: &CudaDevice, gemm: &Gemm<'_>, c: &Tensor) -> Result<bool> {
    if !matches!(gemm.a.dtype, DType::BF16 | DType::F16) {
        return Ok(false);
    }
    let stream = device.cuda_stream();
    stream.context().bind_to_thread().w()?;
    let addresses = [
        address(device, gemm.b.tensor)?,
        address(device, gemm.a.tensor)?,
        address(device, gemm.onto.unwrap_or(c))?,
        address(device, c)?,
    ];
    let key = Key::new([&gemm.b, &gemm.a, &Matrix::new(c)?], c.dtype(), addresses);
    let factors = Factors {
        alpha: gemm.alpha.to_bits(),
        beta: gemm.beta.to_bits(),
        adds_in_place: gemm.beta != 0.0 && gemm.onto.is_none(),
    };
    LIBRARIES.with_borrow_mut(|libraries| library(libraries, device)?.run(&key, factors, addresses, device))
}

/// Multiplies a b^T of signed bytes into c as [`multiply`] does; the sums are whole numbers. See
/// [`super::multiply_bytes`].
pub(super) fn multiply_bytes(device: &CudaDevice, [a, b, c]: [&Tensor; 3]) -> Result<()> {
    device.cuda_stream().context().bind_to_thread().w()?;
    let place = address(device, c)?;
    let addresses = [address(device, b)?, address(device, a)?, place, place];
    // The library takes bytes only with both sums along rows in memory: as its first operand transposed, and its second as it is.
    let sizes = [&Matrix::new(b)?.t(), &Matrix::new(a)?, &Matrix::new(c)?];
    let key = Key::new(sizes, c.dtype(), addresses);
    let factors = Factors {
        alpha: 1,
        beta: 0,
        adds_in_place: false,
    };
    let taken =
        LIBRARIES.with_borrow_mut(|libraries| library(libraries, device)?.run(&key, factors, addresses, device))?;
    if !taken {
        candle_core::bail!(
            "cuBLASLt has no product of bytes for {} on this GPU: set `activation_quantization` to none",
            key.name()
        );
    }
    Ok(())
}

/// Allocates the workspace of this thread's products, if it is not there yet.
pub(super) fn prepare(device: &CudaDevice) -> Result<()> {
    device.cuda_stream().context().bind_to_thread().w()?;
    LIBRARIES.with_borrow_mut(|libraries| library(libraries, device).map(drop))
}

/// Address of the workspace of this thread's products.
pub(super) fn workspace(device: &CudaDevice) -> Result<u64> {
    let stream = device.cuda_stream();
    LIBRARIES.with_borrow_mut(|libraries| Ok(library(libraries, device)?.workspace.device_ptr(&stream).0))
}

/// Whether the second of two ways is to be taken; `None` where they are to be timed now.
pub(super) fn known_way(device: &CudaDevice, name: &str) -> Result<Option<bool>> {
    LIBRARIES.with_borrow_mut(|libraries| {
        let library = library(libraries, device)?;
        let Some(choices) = &library.choices else {
            return Ok(Some(false));
        };
        let is_open = TIMES.get() && !graph::is_capturing() && library.spent < BUDGET;
        Ok(match choices.find_way(name) {
            Some(known) => Some(known.is_other),
            None => (!is_open).then_some(false),
        })
    })
}

/// Keeps what two ways took, and the time that it took to find out.
pub(super) fn keep_way(device: &CudaDevice, name: &str, times: WayTimes, spent: Duration) -> Result<()> {
    LIBRARIES.with_borrow_mut(|libraries| {
        let library = library(libraries, device)?;
        library.spent += spent;
        if let Some(choices) = &mut library.choices {
            choices.insert_way(name.to_owned(), times);
        }
        Ok(())
    })
}

fn library<'a>(libraries: &'a mut HashMap<usize, Library>, device: &CudaDevice) -> Result<&'a mut Library> {
    Ok(match libraries.entry(device.cuda_stream().context().ordinal()) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(place) => place.insert(Library::new(device)?),
    })
}

impl Key {
    /// Key of the product of b, a and c.
    fn new([b, a, c]: [&Matrix<'_>; 3], result: DType, addresses: Addresses) -> Self {
        let size = |matrix: &Matrix<'_>| (matrix.columns, matrix.rows, matrix.stride);
        Self {
            sizes: [size(b), size(a), size(c)],
            transposed: [b.transposed, a.transposed],
            dtype: a.dtype,
            result,
            alignments: addresses.map(|address| 1 << address.trailing_zeros().min(8)),
        }
    }

    /// Whether the operands are signed bytes and their sums whole numbers.
    fn is_of_bytes(&self) -> bool {
        self.dtype == DType::U8
    }

    /// The shape as the file of choices names it: `bf16 n4096x8192/4096 t64x8192/64 f32 4096x64/4096 align 256,256,16,16`.
    fn name(&self) -> String {
        let [b, a, c] = self
            .sizes
            .map(|(rows, columns, stride)| format!("{rows}x{columns}/{stride}"));
        let [of_b, of_a] = self.transposed.map(|transposed| if transposed { 't' } else { 'n' });
        let alignments = self.alignments.map(|bytes| bytes.to_string()).join(",");
        let type_name = |dtype: DType| match dtype {
            DType::U8 => "int8",
            DType::U32 => "int32",
            float => float.as_str(),
        };
        let mut name = String::new();
        // Writing to a string cannot fail.
        let _ = write!(
            name,
            "{} {of_b}{b} {of_a}{a} {} {c} align {alignments}",
            type_name(self.dtype),
            type_name(self.result)
        );
        name
    }
}

impl Library {
    fn new(device: &CudaDevice) -> Result<Self> {
        let is_off = std::env::var("PEFT_TUNE_PRODUCTS").is_ok_and(|value| value == "first");
        Ok(Self {
            handle: result::create_handle().map_err(candle_core::Error::wrap)?,
            // SAFETY: nothing reads it before the library has written it.
            workspace: unsafe { device.cuda_stream().alloc(WORKSPACE_BYTES) }.w()?,
            plans: HashMap::new(),
            choices: (!is_off).then(|| ProductChoices::open(machine(device), cache::folder().as_deref())),
            spent: Duration::ZERO,
        })
    }

    fn run(&mut self, key: &Key, factors: Factors, addresses: Addresses, device: &CudaDevice) -> Result<bool> {
        if self.plans.len() >= MOST_PLANS {
            self.plans.clear();
        }
        let handle = self.handle;
        let choices = &mut self.choices;
        let plan = self.plans.entry(*key).or_insert_with(|| {
            let plan = Plan::new(handle, key, choices.as_ref());
            plan.inspect_err(|error| tracing::debug!(%error, ?key, "left to cuBLAS"))
                .ok()
        });
        let Some(plan) = plan else {
            return Ok(false);
        };
        let stream = device.cuda_stream();
        let (workspace, _guard) = self.workspace.device_ptr(&stream);
        let product = Product {
            handle,
            plan,
            factors,
            addresses,
            workspace,
            stream: &stream,
        };
        let is_open = !product.plan.candidates.is_empty() && TIMES.get() && !graph::is_capturing();
        if is_open && self.spent < BUDGET {
            let began = Instant::now();
            let found = product.fastest(key)?;
            plan.candidates = Vec::new();
            self.spent += began.elapsed();
            if let Some(choice) = found {
                plan.algorithm.data = choice.algorithm;
                if let Some(choices) = choices {
                    choices.insert(key.name(), choice);
                }
            }
        }
        let product = Product {
            handle,
            plan,
            factors,
            addresses,
            workspace,
            stream: &stream,
        };
        product.run(&product.plan.algorithm).map_err(candle_core::Error::wrap)?;
        Ok(true)
    }
}

/// Machine that the choices on `device` hold for.
fn machine(device: &CudaDevice) -> Machine {
    let stream = device.cuda_stream();
    let mut driver = 0;
    // SAFETY: it is written; where it is not, 0 is as good as any number.
    let _ = unsafe { driver::cuDriverGetVersion(&raw mut driver) };
    Machine {
        gpu: stream.context().name().unwrap_or_default(),
        driver,
        // SAFETY: it takes nothing.
        library: unsafe { sys::cublasLtGetVersion() },
    }
}

/// One product that is about to run.
struct Product<'a> {
    handle: sys::cublasLtHandle_t,
    plan: &'a Plan,
    factors: Factors,
    addresses: Addresses,
    workspace: u64,
    stream: &'a CudaStream,
}

impl Product<'_> {
    /// Puts it at the end of the queue.
    fn run(&self, algorithm: &sys::cublasLtMatmulAlgo_t) -> std::result::Result<(), result::CublasError> {
        let ([b, a, added, c], layouts) = (self.addresses, &self.plan.layouts);
        // SAFETY: the addresses hold matrices of these layouts, the result belongs to the caller, and the workspace to this
        // product until the next one in the same queue.
        unsafe {
            result::matmul(
                self.handle,
                self.plan.product,
                (&raw const self.factors.alpha).cast(),
                (&raw const self.factors.beta).cast(),
                b as *const _,
                layouts[0],
                a as *const _,
                layouts[1],
                added as *const _,
                layouts[2],
                c as *mut _,
                layouts[2],
                algorithm,
                self.workspace as *mut _,
                WORKSPACE_BYTES,
                self.stream.cu_stream().cast(),
            )
        }
    }

    /// Times the algorithms that the heuristic named. `None` where nothing could be timed.
    ///
    /// The result is written by each: where it replaces what was there, it is as good a scratch as any, and comes out the same by the
    /// product that follows. Where the product adds to it, other memory takes its place, which is the driver's and not the pool's: it
    /// counts in no training's peak, and where there is none left, the heuristic's first is taken.
    fn fastest(&self, key: &Key) -> Result<Option<Choice>> {
        let scratch = match self.factors.adds_in_place.then(|| Scratch::new(key)) {
            Some(None) => return Ok(None),
            Some(scratch) => scratch,
            None => None,
        };
        let [b, a, added, c] = self.addresses;
        let product = Product {
            addresses: [b, a, added, scratch.as_ref().map_or(c, |scratch| scratch.0)],
            ..*self
        };
        let began = Instant::now();
        let mut times: Vec<(f32, [u64; 8])> = Vec::new();
        for algorithm in &self.plan.candidates {
            if began.elapsed() >= SHAPE_BUDGET && !times.is_empty() {
                break;
            }
            let least = times.iter().map(|(time, _)| *time).fold(f32::INFINITY, f32::min);
            if let Some(time) = product.time(algorithm, least)? {
                times.push((time, algorithm.data));
            }
        }
        let Some(first) = times.first().copied() else {
            return Ok(None);
        };
        let least = times.iter().copied().min_by(|one, other| one.0.total_cmp(&other.0));
        let least = least.filter(|least| least.0 < first.0 * (1.0 - GAIN)).unwrap_or(first);
        tracing::debug!(
            shape = key.name(),
            timed = times.len(),
            first_us = 1e3 * first.0,
            fastest_us = 1e3 * least.0,
            "timed the algorithms of a product"
        );
        Ok(Some(Choice {
            algorithm: least.1,
            microseconds: 1e3 * least.0,
            first_microseconds: 1e3 * first.0,
        }))
    }

    /// Milliseconds of a product by `algorithm`; `None` where it does not run after all, or is nowhere near the `least`.
    fn time(&self, algorithm: &sys::cublasLtMatmulAlgo_t, least: f32) -> Result<Option<f32>> {
        let (Some(first), Some(second)) = (self.times(algorithm, 1)?, self.times(algorithm, 1)?) else {
            return Ok(None);
        };
        match first.min(second) <= HOPELESS * least {
            true => self.times(algorithm, RUNS),
            false => Ok(None),
        }
    }

    /// Milliseconds of each of so many products.
    fn times(&self, algorithm: &sys::cublasLtMatmulAlgo_t, runs: u32) -> Result<Option<f32>> {
        let mark = || {
            self.stream
                .record_event(Some(driver::CUevent_flags::CU_EVENT_DEFAULT))
                .w()
        };
        let first = mark()?;
        for _ in 0..runs {
            match self.run(algorithm) {
                Ok(()) => {}
                Err(error) if takes_the_device(&error) => return Err(candle_core::Error::wrap(error)),
                Err(_) => return Ok(None),
            }
        }
        Ok(Some(first.elapsed_ms(&mark()?).w()? / runs as f32))
    }
}

/// Whether nothing more runs behind an error.
fn takes_the_device(error: &result::CublasError) -> bool {
    use sys::cublasStatus_t as Status;
    matches!(
        error.0,
        Status::CUBLAS_STATUS_EXECUTION_FAILED
            | Status::CUBLAS_STATUS_INTERNAL_ERROR
            | Status::CUBLAS_STATUS_MAPPING_ERROR
    )
}

/// Memory of the driver's for a result that nobody wants.
struct Scratch(u64);

impl Scratch {
    fn new(key: &Key) -> Option<Self> {
        let (_, columns, stride) = key.sizes[2];
        let bytes = columns * stride * key.result.size_in_bytes();
        // SAFETY: what a product reads of it counts for nothing.
        unsafe { cudarc::driver::result::malloc_sync(bytes) }.ok().map(Self)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: made by `new`, freed once, behind events that the products were waited for by.
        let _ = unsafe { cudarc::driver::result::free_sync(self.0) };
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        self.plans.clear();
        // SAFETY: made by `new`, destroyed once. What is left to do about a failure is nothing.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}
