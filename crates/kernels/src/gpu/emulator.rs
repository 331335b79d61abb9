//! Kernels on the CPU, for tests: each file is compiled as C++ and loaded as a library.

use std::collections::HashMap;
use std::ffi::c_void;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{LazyLock, Mutex};

use candle_core::{Result, Tensor};
use sha2::{Digest, Sha256};

use super::gemm::{Gemm, Matrix};
use super::host_address::host_address;
use super::launch::{Argument, Launch};
use super::source::{PRELUDE, Source};

const EMULATION: &str = include_str!("emulation.h");
const ELEMENTS: &str = include_str!("emulation_elements.h");
const PRODUCTS: &str = include_str!("emulation_warpgroup.h");
const STAGES: &str = include_str!("emulation_stages.h");

/// Whether there is a C++ compiler; without one the tests of kernels have nothing to run on.
pub fn has_compiler() -> bool {
    static HAS: LazyLock<bool> = LazyLock::new(|| Command::new("c++").arg("--version").output().is_ok());
    *HAS
}

/// Libraries by the name of their source. Kernels keep their state in globals: one runs at a time.
static LIBRARIES: LazyLock<Mutex<HashMap<&'static str, libloading::Library>>> = LazyLock::new(Mutex::default);

type Entry = unsafe extern "C" fn(*const u32, *const u32, usize, *const *const c_void);

pub(super) fn launch(launch: &Launch<'_>, arguments: &[Argument<'_>]) -> Result<()> {
    let mut libraries = LIBRARIES.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // SAFETY: the library is our own and has no constructors with side effects.
    let library = libraries
        .entry(launch.source.name)
        .or_insert_with(|| unsafe { libloading::Library::new(compile(launch.source)).unwrap() });
    let symbol = format!("emulate_{}", launch.kernel);
    // SAFETY: the symbol has this type (emulation.h).
    let entry = unsafe { library.get::<Entry>(symbol.as_str()) };
    let entry = entry.unwrap_or_else(|error| panic!("no kernel {} in {}: {error}", launch.kernel, launch.source.name));
    let values: Vec<u64> = arguments.iter().map(value).collect::<Result<_>>()?;
    let pointers: Vec<*const c_void> = values.iter().map(|value| std::ptr::from_ref(value).cast()).collect();
    let (blocks, threads) = (launch.blocks.map(|n| n as u32), launch.threads.map(|n| n as u32));
    // SAFETY: the kernel takes these arguments; the tensors are alive and large enough, or the test is wrong.
    unsafe {
        entry(
            blocks.as_ptr(),
            threads.as_ptr(),
            launch.shared_bytes,
            pointers.as_ptr(),
        )
    };
    Ok(())
}

fn value(argument: &Argument<'_>) -> Result<u64> {
    Ok(match argument {
        Argument::Tensor(tensor) | Argument::Maybe(Some(tensor)) => address(tensor)? as u64,
        Argument::Maybe(None) => 0,
        Argument::U32(value) => u64::from(*value),
        Argument::Address(value) | Argument::U64(value) => *value,
        Argument::F32(value) => u64::from(value.to_bits()),
        Argument::F64(value) => value.to_bits(),
    })
}

/// Address of the first element of a tensor on the CPU.
pub(super) fn address(tensor: &Tensor) -> Result<usize> {
    Ok(host_address(tensor)? as usize)
}

/// Compiles a source once for each state of its text, and returns the library.
fn compile(source: &Source) -> PathBuf {
    let text = format!(
        "{EMULATION}\n{PRELUDE}\n{ELEMENTS}\n{PRODUCTS}\n{STAGES}\n#line 1 \"{}.cu\"\n{}",
        source.name, source.text
    );
    let mut digest = Sha256::new_with_prefix(&text);
    for header in source.headers {
        digest.update(header.text);
    }
    let hash: String = digest
        .finalize()
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let folder = std::env::temp_dir().join("peft-tune-emulated-kernels");
    std::fs::create_dir_all(&folder).unwrap();
    let library = folder.join(format!("{}-{hash}.so", source.name));
    if library.exists() {
        return library;
    }
    let (file, part) = (
        folder.join(format!("{}-{hash}-{}.cpp", source.name, std::process::id())),
        folder.join(format!("{}-{hash}-{}.so", source.name, std::process::id())),
    );
    std::fs::write(&file, text).unwrap();
    let headers = part.with_extension("headers");
    std::fs::create_dir_all(&headers).unwrap();
    for header in source.headers {
        std::fs::write(headers.join(header.name), header.text).unwrap();
    }
    let output = Command::new("c++")
        .args(["-std=c++17", "-O1", "-fPIC", "-shared", "-fno-gnu-unique", "-w", "-o"])
        .args([&part, &file])
        .arg("-I")
        .arg(&headers)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // Whole at once: another test process may look for it.
    std::fs::rename(&part, &library).unwrap();
    library
}

/// A product by plain loops, to check that sizes, strides and transposes are right.
pub(super) fn multiply(gemm: &Gemm<'_>, c: &Tensor) -> Result<()> {
    let (rows, depth) = gemm.a.size();
    let columns = gemm.b.size().1;
    // Of a matrix whose rows are not neighbours, the first one has the address.
    let start = |matrix: &Tensor| address(&matrix.narrow(0, 0, matrix.dim(0)?.min(1))?);
    let (a, b, place) = (start(gemm.a.tensor)?, start(gemm.b.tensor)?, start(c)?);
    let result = Matrix::new(c)?;
    let wide = |matrix: &Matrix<'_>, start: usize| -> Vec<f32> {
        let (rows, columns) = matrix.size();
        let at = |index: usize| {
            let (row, column) = (index / columns, index % columns);
            let (row, column) = if matrix.transposed {
                (column, row)
            } else {
                (row, column)
            };
            read(start, matrix.dtype, row * matrix.stride + column)
        };
        (0..rows * columns).map(at).collect()
    };
    let (a, b) = (wide(&gemm.a, a), wide(&gemm.b, b));
    for row in 0..rows {
        for column in 0..columns {
            let of_row = &a[row * depth..][..depth];
            let of_column = b.iter().skip(column).step_by(columns);
            let sum: f32 = of_row.iter().zip(of_column).map(|(a, b)| a * b).sum();
            let index = row * result.stride + column;
            let old = match gemm.onto {
                _ if gemm.beta == 0.0 => 0.0,
                Some(onto) => gemm.beta * read(address(onto)?, onto.dtype(), row * columns + column),
                None => gemm.beta * read(place, c.dtype(), index),
            };
            write(place, c.dtype(), index, gemm.alpha * sum + old);
        }
    }
    Ok(())
}

/// Multiplies signed bytes as [`multiply`] does floats.
pub(super) fn multiply_bytes([a, b, c]: [&Tensor; 3]) -> Result<()> {
    let ((rows, depth), columns) = (a.dims2()?, c.dims2()?.1);
    let signed = |tensor: &Tensor| -> Result<Vec<i32>> {
        let codes = tensor.flatten_all()?.to_vec1::<u8>()?;
        Ok(codes.into_iter().map(|code| i32::from(code.cast_signed())).collect())
    };
    let (a, b, start) = (signed(a)?, signed(b)?, address(c)? as *mut i32);
    for row in 0..rows {
        for column in 0..columns {
            let terms = a[row * depth..][..depth].iter().zip(&b[column * depth..][..depth]);
            let sum = terms.map(|(a, b)| a * b).sum();
            // SAFETY: the product's sizes were checked against the tensors'; the result belongs to the caller.
            unsafe { *start.add(row * columns + column) = sum };
        }
    }
    Ok(())
}

fn read(start: usize, dtype: candle_core::DType, index: usize) -> f32 {
    use candle_core::DType;
    // SAFETY: the product's sizes were checked against the tensors'.
    unsafe {
        match dtype {
            DType::BF16 => (*(start as *const half::bf16).add(index)).to_f32(),
            DType::F16 => (*(start as *const half::f16).add(index)).to_f32(),
            _ => *(start as *const f32).add(index),
        }
    }
}

fn write(start: usize, dtype: candle_core::DType, index: usize, value: f32) {
    use candle_core::DType;
    // SAFETY: as for `read`; the result belongs to the caller.
    unsafe {
        match dtype {
            DType::BF16 => *(start as *mut half::bf16).add(index) = half::bf16::from_f32(value),
            DType::F16 => *(start as *mut half::f16).add(index) = half::f16::from_f32(value),
            _ => *(start as *mut f32).add(index) = value,
        }
    }
}
