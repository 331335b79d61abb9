//! One product as the library describes it, and the algorithms that its heuristic names.

use candle_core::DType;
use cudarc::cublaslt::{result, sys};

use super::Key;
use crate::gpu::product_choices::ProductChoices;
use crate::gpu::scratch::WORKSPACE_BYTES;

/// Algorithms that the heuristic is asked for.
const CANDIDATES: usize = 16;

/// Descriptors of one product, destroyed when it goes.
pub(super) struct Plan {
    pub product: sys::cublasLtMatmulDesc_t,
    pub layouts: [sys::cublasLtMatrixLayout_t; 3],
    /// The one to take.
    pub algorithm: sys::cublasLtMatmulAlgo_t,
    /// Algorithms that the heuristic named, where none of them was timed yet.
    pub candidates: Vec<sys::cublasLtMatmulAlgo_t>,
}

impl Plan {
    /// # Errors
    /// What the library has no algorithm for.
    pub(super) fn new(
        handle: sys::cublasLtHandle_t,
        key: &Key,
        choices: Option<&ProductChoices>,
    ) -> std::result::Result<Self, result::CublasError> {
        let mut plan = Self {
            product: match key.is_of_bytes() {
                true => result::create_matmul_desc(
                    sys::cublasComputeType_t::CUBLAS_COMPUTE_32I,
                    sys::cudaDataType::CUDA_R_32I,
                )?,
                false => result::create_matmul_desc(
                    sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                    sys::cudaDataType::CUDA_R_32F,
                )?,
            },
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

    /// Asks the heuristic for algorithms; it names at least one.
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

/// Preference for what an algorithm may use, destroyed when it goes.
struct Preference(sys::cublasLtMatmulPreference_t);

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: made by its owner, destroyed once.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}

/// Bytes are signed codes, and words their sums.
fn data_type(dtype: DType) -> sys::cudaDataType {
    match dtype {
        DType::U8 => sys::cudaDataType::CUDA_R_8I,
        DType::U32 => sys::cudaDataType::CUDA_R_32I,
        DType::BF16 => sys::cudaDataType::CUDA_R_16BF,
        DType::F16 => sys::cudaDataType::CUDA_R_16F,
        _ => sys::cudaDataType::CUDA_R_32F,
    }
}
