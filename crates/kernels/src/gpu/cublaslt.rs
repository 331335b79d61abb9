//! Products of BF16 and F16 matrices through cuBLASLt: the algorithm is chosen once for a shape and kept.
//!
//! cuBLAS asks its heuristic on each call, and takes workspace of its own as it likes. Here both are settled when a shape is
//! first met, in a workspace whose size does not change, so that later steps allocate nothing. What cuBLASLt has no algorithm
//! for goes to cuBLAS.
//!
//! The heuristic names several algorithms, and its first is not always the fastest. In a training's first steps each is timed on
//! the product itself ([`super::TimedProducts`]); the fastest is kept for the process and, on disk, for later ones. Everything else
//! takes what is known, or the heuristic's first. `PEFT_TUNE_PRODUCTS=first` takes that always.

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

/// Shapes that are kept. Without packing each step brings its own number of tokens.
const MOST_PLANS: usize = 4096;

/// Algorithms that the heuristic is asked for.
const CANDIDATES: usize = 16;

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

/// All that the choice of an algorithm depends on. Sizes and operands as the library has them: by columns, so that
/// c^T = b^T a^T is computed.
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

/// Descriptors of one product, destroyed when it goes.
struct Plan {
    product: sys::cublasLtMatmulDesc_t,
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    /// The one to take.
    algorithm: sys::cublasLtMatmulAlgo_t,
    /// What the heuristic named, where none of it was timed yet.
    candidates: Vec<sys::cublasLtMatmulAlgo_t>,
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
    let key = Key::new(gemm, c, addresses)?;
    LIBRARIES.with_borrow_mut(|libraries| library(libraries, device)?.run(&key, gemm, addresses, device))
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
    fn new(gemm: &Gemm<'_>, c: &Tensor, addresses: Addresses) -> Result<Self> {
        let size = |matrix: &Matrix<'_>| (matrix.columns, matrix.rows, matrix.stride);
        Ok(Self {
            sizes: [size(&gemm.b), size(&gemm.a), size(&Matrix::new(c)?)],
            transposed: [gemm.b.transposed, gemm.a.transposed],
            dtype: gemm.a.dtype,
            result: c.dtype(),
            alignments: addresses.map(|address| 1 << address.trailing_zeros().min(8)),
        })
    }

    /// The shape as the file of choices names it: `bf16 n4096x8192/4096 t64x8192/64 f32 4096x64/4096 align 256,256,16,16`.
    fn name(&self) -> String {
        let [b, a, c] = self
            .sizes
            .map(|(rows, columns, stride)| format!("{rows}x{columns}/{stride}"));
        let [of_b, of_a] = self.transposed.map(|transposed| if transposed { 't' } else { 'n' });
        let alignments = self.alignments.map(|bytes| bytes.to_string()).join(",");
        let mut name = String::new();
        // Writing to a string cannot fail.
        let _ = write!(
            name,
            "{} {of_b}{b} {of_a}{a} {} {c} align {alignments}",
            self.dtype.as_str(),
            self.result.as_str()
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

    fn run(&mut self, key: &Key, gemm: &Gemm<'_>, addresses: Addresses, device: &CudaDevice) -> Result<bool> {
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
            gemm,
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
            gemm,
            addresses,
            workspace,
            stream: &stream,
        };
        product.run(&product.plan.algorithm).map_err(candle_core::Error::wrap)?;
        Ok(true)
    }
}

/// What the choices on `device` hold for.
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
    gemm: &'a Gemm<'a>,
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
                (&raw const self.gemm.alpha).cast(),
                (&raw const self.gemm.beta).cast(),
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
        let adds_in_place = self.gemm.beta != 0.0 && self.gemm.onto.is_none();
        let scratch = match adds_in_place.then(|| Scratch::new(key)) {
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

impl Plan {
    fn new(
        handle: sys::cublasLtHandle_t,
        key: &Key,
        choices: Option<&ProductChoices>,
    ) -> std::result::Result<Self, result::CublasError> {
        let mut plan = Self {
            product: result::create_matmul_desc(
                sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                sys::cudaDataType::CUDA_R_32F,
            )?,
            layouts: [std::ptr::null_mut(); 3],
            algorithm: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
            candidates: Vec::new(),
        };
        let types = [key.dtype, key.dtype, key.result].map(data_type);
        for ((layout, (rows, columns, stride)), dtype) in plan.layouts.iter_mut().zip(key.sizes).zip(types) {
            *layout = result::create_matrix_layout(dtype, rows as u64, columns as u64, stride as i64)?;
        }
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let sides = [
            Attribute::CUBLASLT_MATMUL_DESC_TRANSA,
            Attribute::CUBLASLT_MATMUL_DESC_TRANSB,
        ];
        for (side, transposed) in sides.into_iter().zip(key.transposed) {
            let operation = i32::from(transposed);
            // SAFETY: the descriptor is alive; the attribute is an operation, which is an int (0 as it is, 1 transposed).
            unsafe { result::set_matmul_desc_attribute(plan.product, side, (&raw const operation).cast(), 4)? };
        }
        plan.choose(handle, key, choices)?;
        Ok(plan)
    }

    /// Takes the algorithm that was found to be the fastest, where the heuristic still names it; else its first, and all of them to be
    /// timed.
    fn choose(
        &mut self,
        handle: sys::cublasLtHandle_t,
        key: &Key,
        choices: Option<&ProductChoices>,
    ) -> std::result::Result<(), result::CublasError> {
        let candidates = self.ask(handle, key)?;
        let known = choices.and_then(|choices| choices.find(&key.name()));
        let known = known.and_then(|known| candidates.iter().find(|one| one.data == known.algorithm));
        self.algorithm = *known.unwrap_or(&candidates[0]);
        if known.is_none() && choices.is_some() && candidates.len() > 1 {
            self.candidates = candidates;
        }
        Ok(())
    }

    /// What the heuristic names, at least one.
    fn ask(
        &self,
        handle: sys::cublasLtHandle_t,
        key: &Key,
    ) -> std::result::Result<Vec<sys::cublasLtMatmulAlgo_t>, result::CublasError> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
        let preference = Preference(result::create_matmul_pref()?);
        let bytes = WORKSPACE_BYTES as u64;
        let workspace = Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        // SAFETY: the preference is alive; the attribute is a u64.
        unsafe { result::set_matmul_pref_attribute(preference.0, workspace, (&raw const bytes).cast(), 8)? };
        // Sums that are split over blocks meet in F32, or are not split: partial sums in the result's 16 bits lose what F32 sums keep.
        let schemes = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
        let reduction = Attribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK;
        // SAFETY: as above; the attribute is a u32.
        unsafe { result::set_matmul_pref_attribute(preference.0, reduction, (&raw const schemes).cast(), 4)? };
        let [b, a, added, c] = key.alignments;
        let alignments = [
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, b),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, a),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, added),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, c),
        ];
        for (attribute, bytes) in alignments {
            // SAFETY: as above; the attribute is a u32.
            unsafe { result::set_matmul_pref_attribute(preference.0, attribute, (&raw const bytes).cast(), 4)? };
        }
        let [b, a, c] = self.layouts;
        let mut found = [const { std::mem::MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::uninit() }; CANDIDATES];
        let mut count = 0;
        // The wrapper asks for one.
        // SAFETY: all of them are alive, and there is room for as many results as are asked for.
        unsafe {
            let (wanted, results) = (CANDIDATES as i32, found.as_mut_ptr().cast());
            sys::cublasLtMatmulAlgoGetHeuristic(
                handle,
                self.product,
                b,
                a,
                c,
                c,
                preference.0,
                wanted,
                results,
                &raw mut count,
            )
            .result()?;
        }
        let found = found.iter().take(usize::try_from(count).unwrap_or(0));
        // SAFETY: the library has written so many.
        let found = found.map(|one| unsafe { one.assume_init_ref() });
        let sound = found.filter(|one| one.state.result().is_ok() && one.workspaceSize <= WORKSPACE_BYTES);
        let algorithms: Vec<_> = sound.map(|one| one.algo).collect();
        match algorithms.is_empty() {
            true => Err(result::CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED)),
            false => Ok(algorithms),
        }
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once; null where `new` did not come so far.
        unsafe {
            let _ = result::destroy_matmul_desc(self.product);
            for layout in self.layouts.into_iter().filter(|layout| !layout.is_null()) {
                let _ = result::destroy_matrix_layout(layout);
            }
        }
    }
}

/// What an algorithm may use, destroyed when it goes.
struct Preference(sys::cublasLtMatmulPreference_t);

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: made by its owner, destroyed once.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}

fn data_type(dtype: DType) -> sys::cudaDataType {
    match dtype {
        DType::BF16 => sys::cudaDataType::CUDA_R_16BF,
        DType::F16 => sys::cudaDataType::CUDA_R_16F,
        _ => sys::cudaDataType::CUDA_R_32F,
    }
}
