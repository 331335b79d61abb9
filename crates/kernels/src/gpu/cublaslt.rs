//! Products of BF16 and F16 matrices through cuBLASLt: the algorithm is chosen once for a shape and kept.
//!
//! cuBLAS asks its heuristic on each call, and takes workspace of its own as it likes. Here both are settled when a shape is
//! first met, in a workspace whose size does not change, so that later steps allocate nothing. What cuBLASLt has no algorithm
//! for goes to cuBLAS.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use candle_core::cuda_backend::{CudaDevice, WrapErr};
use candle_core::{DType, Result, Tensor};
use cudarc::cublaslt::{result, sys};
use cudarc::driver::{CudaSlice, DevicePtr};

use super::gemm::{Gemm, Matrix};
use super::runtime::address;

/// Workspace of all products: what the library's guide advises for Hopper, and enough for those before it.
const WORKSPACE_BYTES: usize = 32 << 20;

/// Shapes that are kept. Without packing each step brings its own number of tokens.
const MOST_PLANS: usize = 4096;

thread_local! {
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
}

/// Descriptors of one product, destroyed when it goes.
struct Plan {
    product: sys::cublasLtMatmulDesc_t,
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    algorithm: Option<sys::cublasLtMatmulAlgo_t>,
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

fn library<'a>(libraries: &'a mut HashMap<usize, Library>, device: &CudaDevice) -> Result<&'a mut Library> {
    Ok(match libraries.entry(device.cuda_stream().context().ordinal()) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(place) => place.insert(Library::new(device)?),
    })
}

impl Key {
    fn new(gemm: &Gemm<'_>, c: &Tensor, addresses: [u64; 4]) -> Result<Self> {
        let size = |matrix: &Matrix<'_>| (matrix.columns, matrix.rows, matrix.stride);
        Ok(Self {
            sizes: [size(&gemm.b), size(&gemm.a), size(&Matrix::new(c)?)],
            transposed: [gemm.b.transposed, gemm.a.transposed],
            dtype: gemm.a.dtype,
            result: c.dtype(),
            alignments: addresses.map(|address| 1 << address.trailing_zeros().min(8)),
        })
    }
}

impl Library {
    fn new(device: &CudaDevice) -> Result<Self> {
        Ok(Self {
            handle: result::create_handle().map_err(candle_core::Error::wrap)?,
            // SAFETY: nothing reads it before the library has written it.
            workspace: unsafe { device.cuda_stream().alloc(WORKSPACE_BYTES) }.w()?,
            plans: HashMap::new(),
        })
    }

    fn run(&mut self, key: &Key, gemm: &Gemm<'_>, [b, a, added, c]: [u64; 4], device: &CudaDevice) -> Result<bool> {
        if self.plans.len() >= MOST_PLANS {
            self.plans.clear();
        }
        let handle = self.handle;
        let plan = self.plans.entry(*key).or_insert_with(|| {
            let plan = Plan::new(handle, key);
            plan.inspect_err(|error| tracing::debug!(%error, ?key, "left to cuBLAS"))
                .ok()
        });
        let Some(Plan {
            product,
            layouts,
            algorithm: Some(algorithm),
        }) = plan
        else {
            return Ok(false);
        };
        let stream = device.cuda_stream();
        let (workspace, _guard) = self.workspace.device_ptr(&stream);
        // SAFETY: the addresses hold matrices of these layouts, the result belongs to the caller, and the workspace to this
        // product until the next one in the same queue.
        let done = unsafe {
            result::matmul(
                handle,
                *product,
                (&raw const gemm.alpha).cast(),
                (&raw const gemm.beta).cast(),
                b as *const _,
                layouts[0],
                a as *const _,
                layouts[1],
                added as *const _,
                layouts[2],
                c as *mut _,
                layouts[2],
                &raw const *algorithm,
                workspace as *mut _,
                WORKSPACE_BYTES,
                stream.cu_stream().cast(),
            )
        };
        done.map_err(candle_core::Error::wrap)?;
        Ok(true)
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
    fn new(handle: sys::cublasLtHandle_t, key: &Key) -> std::result::Result<Self, result::CublasError> {
        let mut plan = Self {
            product: result::create_matmul_desc(
                sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                sys::cudaDataType::CUDA_R_32F,
            )?,
            layouts: [std::ptr::null_mut(); 3],
            algorithm: None,
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
        plan.algorithm = Some(plan.choose(handle, key)?);
        Ok(plan)
    }

    fn choose(
        &self,
        handle: sys::cublasLtHandle_t,
        key: &Key,
    ) -> std::result::Result<sys::cublasLtMatmulAlgo_t, result::CublasError> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
        let preference = Preference(result::create_matmul_pref()?);
        let bytes = WORKSPACE_BYTES as u64;
        let workspace = Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        // SAFETY: the preference is alive; the attribute is a u64.
        unsafe { result::set_matmul_pref_attribute(preference.0, workspace, (&raw const bytes).cast(), 8)? };
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
        // SAFETY: all of them are alive.
        let best = unsafe { result::get_matmul_algo_heuristic(handle, self.product, b, a, c, c, preference.0)? };
        Ok(best.algo)
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
