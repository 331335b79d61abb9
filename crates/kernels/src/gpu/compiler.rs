//! NVRTC, and what it compiled kept on disk.
//!
//! A file's binary is named by a digest of its text, the architecture and NVRTC's version: any change compiles it
//! again, and nothing stale is ever found. Where the folder cannot be written, kernels are compiled in each process.

use std::ffi::CString;
use std::path::PathBuf;

use cudarc::nvrtc::sys;
use sha2::{Digest, Sha256};

use super::Source;
use super::cache::{folder, keep};
use super::source::Header;

/// Kernels that cannot be compiled.
#[derive(Debug, thiserror::Error)]
pub(super) enum CompileError {
    #[error("NVRTC: {call} failed ({error:?}); check that libnvrtc.so and libnvrtc-builtins.so are of one version")]
    Call {
        call: &'static str,
        error: sys::nvrtcResult,
    },
    #[error("kernels of {source_name}.cu do not compile for {architecture} with NVRTC {version}:\n{log}")]
    Program {
        source_name: &'static str,
        architecture: String,
        version: String,
        log: String,
    },
}

/// The machine code of `source` for `architecture` (`sm_80`).
///
/// # Errors
/// A program that does not compile.
pub(super) fn binary(source: &Source, architecture: &str) -> Result<Vec<u8>, CompileError> {
    let (text, version) = (source.whole(), version()?);
    let file = cached(source, &text, architecture, &version);
    if let Some(binary) = file.as_deref().and_then(|file| std::fs::read(file).ok()) {
        return Ok(binary);
    }
    let binary = compile(source, &text, architecture, &version)?;
    if let Some(file) = file
        && let Err(error) = keep(&file, &binary)
    {
        tracing::warn!(path = %file.display(), %error, "cannot keep compiled kernels; they are compiled in each process");
    }
    Ok(binary)
}

/// NVRTC's version, `13.0`.
fn version() -> Result<String, CompileError> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both are written.
    check("nvrtcVersion", unsafe { sys::nvrtcVersion(&mut major, &mut minor) })?;
    Ok(format!("{major}.{minor}"))
}

fn cached(source: &Source, text: &str, architecture: &str, version: &str) -> Option<PathBuf> {
    let folder = folder()?;
    let mut digest = Sha256::new();
    let headers = source.headers.iter().map(|header| header.text);
    for part in [text, architecture, version].into_iter().chain(headers) {
        digest.update(part.as_bytes());
        digest.update([0]);
    }
    let digest: String = digest
        .finalize()
        .iter()
        .take(12)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Some(folder.join(format!("{}-{architecture}-{digest}.cubin", source.name)))
}

fn compile(source: &Source, text: &str, architecture: &str, version: &str) -> Result<Vec<u8>, CompileError> {
    load_builtins();
    let program = Program::new(source, text)?;
    // No fast math: divisions, roots and exponentials are those of the CPU to the last places.
    let options = [format!("--gpu-architecture={architecture}"), "--std=c++17".to_owned()];
    let options: Vec<CString> = options
        .iter()
        .filter_map(|option| CString::new(option.as_str()).ok())
        .collect();
    let pointers: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
    // SAFETY: the options outlive the call.
    let compiled = unsafe { sys::nvrtcCompileProgram(program.0, pointers.len() as i32, pointers.as_ptr()) };
    if compiled != sys::nvrtcResult::NVRTC_SUCCESS {
        return Err(CompileError::Program {
            source_name: source.name,
            architecture: architecture.to_owned(),
            version: version.to_owned(),
            log: program.log(),
        });
    }
    program.binary()
}

/// NVRTC opens its builtins by name, which the loader finds only in its own folders; where NVRTC itself came from elsewhere
/// (a Python wheel), they lie beside it. What is loaded already is found.
fn load_builtins() {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: the function's address is that of loaded code; the result is read only where the call filled it.
    let library = unsafe {
        if libc::dladdr(sys::nvrtcVersion as *const libc::c_void, info.as_mut_ptr()) == 0 {
            return;
        }
        std::ffi::CStr::from_ptr(info.assume_init().dli_fname)
    };
    let library = PathBuf::from(library.to_string_lossy().into_owned());
    let files = library.parent().and_then(|folder| std::fs::read_dir(folder).ok());
    for file in files.into_iter().flatten().flatten() {
        let is_one = file.file_name().to_string_lossy().starts_with("libnvrtc-builtins.so.");
        if let (true, Ok(path)) = (is_one, CString::new(file.path().to_string_lossy().into_owned())) {
            // SAFETY: a library of NVRTC's own; it stays loaded. Where it does not load, NVRTC says what is missing.
            unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        }
    }
}

/// A program that is destroyed when it goes.
struct Program(sys::nvrtcProgram);

impl Program {
    fn new(source: &Source, text: &str) -> Result<Self, CompileError> {
        let failed = |error| CompileError::Call {
            call: "nvrtcCreateProgram",
            error,
        };
        let invalid = |_| failed(sys::nvrtcResult::NVRTC_ERROR_INVALID_INPUT);
        let text = CString::new(text).map_err(invalid)?;
        let name = CString::new(format!("{}.cu", source.name)).map_err(invalid)?;
        let of_headers = |part: fn(&Header) -> &str| -> Result<Vec<CString>, _> {
            source.headers.iter().map(|header| CString::new(part(header))).collect()
        };
        let headers = of_headers(|header| header.text).map_err(invalid)?;
        let names = of_headers(|header| header.name).map_err(invalid)?;
        let pointers = |texts: &[CString]| -> Vec<_> { texts.iter().map(|text| text.as_ptr()).collect() };
        let mut program = std::ptr::null_mut();
        // SAFETY: the texts outlive the call, which copies them.
        let created = unsafe {
            sys::nvrtcCreateProgram(
                &mut program,
                text.as_ptr(),
                name.as_ptr(),
                headers.len() as i32,
                pointers(&headers).as_ptr(),
                pointers(&names).as_ptr(),
            )
        };
        check("nvrtcCreateProgram", created)?;
        Ok(Self(program))
    }

    fn log(&self) -> String {
        let mut size = 0;
        // SAFETY: the program is alive; the buffer has the size that NVRTC named.
        unsafe {
            if sys::nvrtcGetProgramLogSize(self.0, &mut size) != sys::nvrtcResult::NVRTC_SUCCESS {
                return String::new();
            }
            let mut log = vec![0u8; size];
            sys::nvrtcGetProgramLog(self.0, log.as_mut_ptr().cast());
            String::from_utf8_lossy(&log).trim_end_matches('\0').to_owned()
        }
    }

    fn binary(&self) -> Result<Vec<u8>, CompileError> {
        let mut size = 0;
        // SAFETY: as for `log`.
        unsafe {
            check("nvrtcGetCUBINSize", sys::nvrtcGetCUBINSize(self.0, &mut size))?;
            let mut binary = vec![0u8; size];
            check("nvrtcGetCUBIN", sys::nvrtcGetCUBIN(self.0, binary.as_mut_ptr().cast()))?;
            Ok(binary)
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once. What is left to do about a failure is nothing.
        unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
    }
}

fn check(call: &'static str, error: sys::nvrtcResult) -> Result<(), CompileError> {
    match error {
        sys::nvrtcResult::NVRTC_SUCCESS => Ok(()),
        error => Err(CompileError::Call { call, error }),
    }
}
