//! CUPTI, loaded when it is needed.
//!
//! It fills buffers with records on a thread of its own and hands them back; what they hold is copied out at once. Functions
//! and their types are those of `cupti_activity.h`, `cupti_result.h` and `cupti_version.h` of CUDA 13.

use std::alloc::Layout;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::record::{self, CALL, COPY, DRIVER_DOMAIN, FILL, KERNEL};
use super::{Activity, FunctionCalls};
use crate::profile::LibraryFolders;

const LIBRARY: &str = "libcupti.so";
/// `CUPTI_API_VERSION` counts from here for CUDA 13, whose records these are.
const VERSIONS: std::ops::Range<u32> = 130_000..140_000;
const SUCCESS: c_int = 0;
/// `CUPTI_ACTIVITY_FLAG_FLUSH_FORCED`: buffers that are not full as well.
const FLUSH_FORCED: u32 = 1;
/// Memory of one buffer of records; a step of a large model fills some.
const BUFFER: Layout = match Layout::from_size_align(4 << 20, 8) {
    Ok(layout) => layout,
    Err(_) => Layout::new::<u64>(),
};

/// Why there are no kernels in a profile.
#[derive(Debug, thiserror::Error)]
pub enum CuptiError {
    #[error("{LIBRARY} is in none of {}: `pip install nvidia-cuda-cupti`, or name its folder in LD_LIBRARY_PATH", list(.looked_in))]
    Missing { looked_in: Vec<PathBuf> },
    #[error("{} cannot be loaded: {message}", path.display())]
    Load { path: PathBuf, message: String },
    #[error("{} has no function {name}: it is not the CUPTI of CUDA 13", path.display())]
    Function { path: PathBuf, name: &'static str },
    #[error(
        "{} is CUPTI {version}, whose records are not known; take that of CUDA 13: `pip install nvidia-cuda-cupti`",
        path.display()
    )]
    Version { path: PathBuf, version: u32 },
    #[error("CUPTI: {call} failed: {message}")]
    Call { call: &'static str, message: String },
}

fn list(folders: &[PathBuf]) -> String {
    let names: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
    names.join(", ")
}

type GetVersion = unsafe extern "C" fn(*mut u32) -> c_int;
type GetTimestamp = unsafe extern "C" fn(*mut u64) -> c_int;
type GetResultString = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;
type GetCallbackName = unsafe extern "C" fn(u32, u32, *mut *const c_char) -> c_int;
type Switch = unsafe extern "C" fn(u32) -> c_int;
type GetNextRecord = unsafe extern "C" fn(*mut u8, usize, *mut *mut u8) -> c_int;
type BufferRequested = unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
type BufferCompleted = unsafe extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);
type RegisterCallbacks = unsafe extern "C" fn(BufferRequested, BufferCompleted) -> c_int;

/// The library's functions. It stays loaded.
#[derive(Debug)]
struct Library {
    result_string: GetResultString,
    callback_name: GetCallbackName,
    timestamp: GetTimestamp,
    enable: Switch,
    disable: Switch,
    flush_all: Switch,
    next_record: GetNextRecord,
    register_callbacks: RegisterCallbacks,
}

// Design note: the library calls back without a word of whose buffers they are, so that both are the process's.
static LIBRARY_IN_USE: OnceLock<Library> = OnceLock::new();
static COLLECTED: Mutex<Vec<Activity>> = Mutex::new(Vec::new());
/// Calls of the driver by function: how often, and nanoseconds.
static CALLS: Mutex<Option<HashMap<u32, (u64, u64)>>> = Mutex::new(None);

/// Records what the GPU runs until it is dropped.
#[derive(Debug)]
pub struct Collector {
    library: &'static Library,
}

impl Collector {
    /// Begins to record, in a process that has a GPU open.
    ///
    /// # Errors
    /// A library that is missing or of another version, or that a driver does not let in.
    pub fn start(folders: &LibraryFolders) -> Result<Self, CuptiError> {
        let library = match LIBRARY_IN_USE.get() {
            Some(library) => library,
            None => {
                let library = Library::open(folders)?;
                // SAFETY: the callbacks have the types that the library expects, and live as long as the program.
                library.check("cuptiActivityRegisterCallbacks", unsafe {
                    (library.register_callbacks)(requested, completed)
                })?;
                LIBRARY_IN_USE.get_or_init(|| library)
            }
        };
        let collector = Self { library };
        for kind in [KERNEL, COPY, FILL] {
            // SAFETY: a kind that the library knows. Dropping the collector switches off what has been switched on.
            library.check("cuptiActivityEnable", unsafe { (library.enable)(kind) })?;
        }
        collected().clear();
        Ok(collector)
    }

    /// Nanoseconds of the clock that records count by.
    pub fn now_ns(&self) -> Result<u64, CuptiError> {
        let mut now = 0;
        // SAFETY: it is written.
        let call = unsafe { (self.library.timestamp)(&mut now) };
        self.library.check("cuptiGetTimestamp", call)?;
        Ok(now)
    }

    /// Counts the driver's calls as well, until [`Collector::take_calls`]. It costs each of them some time: what the GPU does
    /// meanwhile is no measure.
    pub fn count_calls(&self) -> Result<(), CuptiError> {
        *calls() = Some(HashMap::new());
        // SAFETY: a kind that the library knows.
        self.library
            .check("cuptiActivityEnable", unsafe { (self.library.enable)(CALL) })
    }

    /// The driver's calls since [`Collector::count_calls`], by function.
    pub fn take_calls(&self) -> Result<Vec<FunctionCalls>, CuptiError> {
        // SAFETY: as for `take`.
        let flushed = unsafe { (self.library.flush_all)(FLUSH_FORCED) };
        // SAFETY: as for `count_calls`.
        let stopped = unsafe { (self.library.disable)(CALL) };
        let counted = calls().take().unwrap_or_default();
        self.library.check("cuptiActivityFlushAll", flushed)?;
        self.library.check("cuptiActivityDisable", stopped)?;
        let named = |(function, (count, nanoseconds)): (u32, (u64, u64))| FunctionCalls {
            name: self.library.name_of_call(function),
            count,
            seconds: nanoseconds as f64 / 1e9,
        };
        let mut named: Vec<_> = counted.into_iter().map(named).collect();
        named.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(named)
    }

    /// Activities of the GPU since the last call, in the order of their beginning; times count from `origin_ns` of
    /// [`Collector::now_ns`]. The device has finished what it was given.
    pub fn take(&self, origin_ns: u64) -> Result<Vec<Activity>, CuptiError> {
        // SAFETY: no callback is under way on this thread.
        let call = unsafe { (self.library.flush_all)(FLUSH_FORCED) };
        self.library.check("cuptiActivityFlushAll", call)?;
        let mut all: Vec<Activity> = std::mem::take(&mut *collected());
        all.retain(|activity| activity.start_ns >= origin_ns);
        for activity in &mut all {
            activity.start_ns -= origin_ns;
            activity.end_ns -= origin_ns;
        }
        all.sort_by_key(|activity| activity.start_ns);
        Ok(all)
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        for kind in [KERNEL, COPY, FILL] {
            // SAFETY: as for switching it on; one that is off already is no harm.
            let _ = unsafe { (self.library.disable)(kind) };
        }
        collected().clear();
    }
}

fn calls() -> std::sync::MutexGuard<'static, Option<HashMap<u32, (u64, u64)>>> {
    CALLS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn collected() -> std::sync::MutexGuard<'static, Vec<Activity>> {
    COLLECTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Hands out a buffer; any number of records may go into it.
unsafe extern "C" fn requested(buffer: *mut *mut u8, size: *mut usize, most_records: *mut usize) {
    // SAFETY: the layout has a size; the library's pointers are valid. Where there is no memory it drops records.
    unsafe {
        *buffer = std::alloc::alloc(BUFFER);
        *size = if (*buffer).is_null() { 0 } else { BUFFER.size() };
        *most_records = 0;
    }
}

/// Reads a buffer and frees it.
unsafe extern "C" fn completed(_: *mut c_void, _: u32, buffer: *mut u8, _: usize, valid: usize) {
    if buffer.is_null() {
        return;
    }
    if let Some(library) = LIBRARY_IN_USE.get() {
        let mut record = std::ptr::null_mut();
        let (mut all, mut calls) = (collected(), calls());
        // SAFETY: the buffer is one of `requested`, of which so many bytes are valid; its records are whole.
        unsafe {
            while (library.next_record)(buffer, valid, &mut record) == SUCCESS {
                all.extend(record::read(record));
                if let (Some(calls), Some((function, nanoseconds))) = (calls.as_mut(), record::read_call(record)) {
                    let sum = calls.entry(function).or_default();
                    *sum = (sum.0 + 1, sum.1 + nanoseconds);
                }
            }
        }
    }
    // SAFETY: allocated by `requested` with this layout, and the library is done with it.
    unsafe { std::alloc::dealloc(buffer, BUFFER) };
}

impl Library {
    fn open(folders: &LibraryFolders) -> Result<Self, CuptiError> {
        let path = folders.find(LIBRARY).ok_or_else(|| CuptiError::Missing {
            looked_in: folders.folders().to_vec(),
        })?;
        // SAFETY: NVIDIA's library, whose constructors touch nothing of ours.
        let library = unsafe { libloading::Library::new(&path) };
        let library = library.map_err(|error| CuptiError::Load {
            path: path.clone(),
            message: error.to_string(),
        })?;
        // It stays loaded, so that its functions stay where they are.
        let library = Box::leak(Box::new(library));
        // SAFETY: each name has the type that its header declares.
        unsafe {
            check_version(library, &path)?;
            Ok(Self {
                result_string: function(library, "cuptiGetResultString", &path)?,
                callback_name: function(library, "cuptiGetCallbackName", &path)?,
                timestamp: function(library, "cuptiGetTimestamp", &path)?,
                enable: function(library, "cuptiActivityEnable", &path)?,
                disable: function(library, "cuptiActivityDisable", &path)?,
                flush_all: function(library, "cuptiActivityFlushAll", &path)?,
                next_record: function(library, "cuptiActivityGetNextRecord", &path)?,
                register_callbacks: function(library, "cuptiActivityRegisterCallbacks", &path)?,
            })
        }
    }

    /// A function of the driver by its number.
    fn name_of_call(&self, function: u32) -> String {
        let mut text = std::ptr::null();
        // SAFETY: a text of the library's own is written, or nothing.
        unsafe {
            match (self.callback_name)(DRIVER_DOMAIN, function, &mut text) == SUCCESS && !text.is_null() {
                true => CStr::from_ptr(text).to_string_lossy().into_owned(),
                false => format!("function {function}"),
            }
        }
    }

    fn check(&self, call: &'static str, result: c_int) -> Result<(), CuptiError> {
        if result == SUCCESS {
            return Ok(());
        }
        let mut text = std::ptr::null();
        // SAFETY: a text of the library's own is written, or nothing.
        let message = unsafe {
            match (self.result_string)(result, &mut text) == SUCCESS && !text.is_null() {
                true => CStr::from_ptr(text).to_string_lossy().into_owned(),
                false => format!("error {result}"),
            }
        };
        Err(CuptiError::Call { call, message })
    }
}

/// # Safety
/// `library` is CUPTI.
unsafe fn check_version(library: &libloading::Library, path: &Path) -> Result<(), CuptiError> {
    let mut version = 0;
    // SAFETY: the header's type; the version is written.
    unsafe {
        let read: GetVersion = function(library, "cuptiGetVersion", path)?;
        read(&mut version);
    }
    match VERSIONS.contains(&version) {
        true => Ok(()),
        false => Err(CuptiError::Version {
            path: path.to_owned(),
            version,
        }),
    }
}

/// # Safety
/// `F` is the type of the function of this name, and the library stays loaded as long as it is called.
unsafe fn function<F: Copy>(library: &libloading::Library, name: &'static str, path: &Path) -> Result<F, CuptiError> {
    // SAFETY: the caller knows the type.
    let found = unsafe { library.get::<F>(name) };
    found.map(|symbol| *symbol).map_err(|_| CuptiError::Function {
        path: path.to_owned(),
        name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A library that answers as CUPTI of `version` would, or `None` without a C compiler.
    fn library(folder: &Path, code: &str) -> Option<LibraryFolders> {
        let source = folder.join("cupti.c");
        std::fs::write(&source, code).unwrap();
        let made = std::process::Command::new("cc")
            .args(["-shared", "-fPIC", "-w", "-o"])
            .args([&folder.join("libcupti.so.13"), &source])
            .status();
        made.is_ok_and(|status| status.success())
            .then(|| LibraryFolders::from_folders(vec![folder.to_owned()]))
    }

    #[test]
    fn a_missing_library_is_named_with_the_folders() {
        let folder = tempfile::tempdir().unwrap();
        let folders = LibraryFolders::from_folders(vec![folder.path().to_owned()]);
        let message = Library::open(&folders).unwrap_err().to_string();
        assert!(message.contains(&folder.path().display().to_string()), "{message}");
        assert!(message.contains("pip install nvidia-cuda-cupti"), "{message}");
    }

    #[test]
    fn another_library_or_version_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libcupti.so.13");
        std::fs::write(&path, "no library").unwrap();
        let folders = LibraryFolders::from_folders(vec![folder.path().to_owned()]);
        assert!(matches!(Library::open(&folders), Err(CuptiError::Load { .. })));
        for (code, expected) in [
            ("int cuptiGetVersion(unsigned* v) { *v = 18; return 0; }", "CUPTI 18"),
            (
                "int cuptiGetVersion(unsigned* v) { *v = 130001; return 0; }",
                "cuptiGetResultString",
            ),
            ("int other(void) { return 0; }", "cuptiGetVersion"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let Some(folders) = library(folder.path(), code) else {
                return;
            };
            let message = Library::open(&folders).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }

    /// A library of two records, a kernel and a copy, that are handed over when they are flushed.
    const STAND_IN: &str = r#"
        #include <string.h>
        typedef unsigned char u8; typedef unsigned long long u64; typedef unsigned long size;
        static void (*ask)(u8**, size*, size*); static void (*give)(void*, unsigned, u8*, size, size);
        static int on[64], failing = 5; static u64 clock_ns = 1000;
        int cuptiGetVersion(unsigned* v) { *v = 130001; return 0; }
        int cuptiGetResultString(int r, const char** s) { *s = "CUPTI_ERROR_STAND_IN"; return 0; }
        int cuptiGetCallbackName(unsigned d, unsigned id, const char** s) {
            *s = id == 307 ? "cuLaunchKernel" : 0; return d != 1;
        }
        int cuptiGetTimestamp(u64* t) { *t = clock_ns += 10; return 0; }
        int cuptiActivityEnable(unsigned kind) { on[kind] = 1; return 0; }
        int cuptiActivityDisable(unsigned kind) { on[kind] = 0; return 0; }
        int cuptiActivityRegisterCallbacks(void* a, void* g) { ask = a; give = g; return 0; }
        static u64 kernel[24], copy[16], call[5];
        int cuptiActivityFlushAll(unsigned flag) {
            u8* buffer; size bytes, most; ask(&buffer, &bytes, &most);
            if (flag != 1 || !on[1] || !on[2] || !on[10] || bytes < 4096 || most) return 1;
            memset(kernel, 0, sizeof kernel); memset(copy, 0, sizeof copy);
            kernel[0] = 10; kernel[2] = 2000; kernel[3] = 2500; kernel[13] = (u64)"rms_norm_f32_4";
            copy[0] = 1 | 1ull << 32; copy[1] = 64; copy[2] = 1200; copy[3] = 1300;
            memcpy(buffer, kernel, sizeof kernel); memcpy(buffer + sizeof kernel, copy, sizeof copy);
            memset(call, 0, sizeof call);
            call[0] = 4 | 307ull << 32; call[1] = 100; call[2] = 600;
            if (on[4]) memcpy(buffer + sizeof kernel + sizeof copy, call, sizeof call);
            give(0, 0, buffer, bytes, sizeof kernel + sizeof copy + (on[4] ? sizeof call : 0));
            return 0;
        }
        int cuptiActivityGetNextRecord(u8* buffer, size valid, u8** record) {
            if (!*record) *record = buffer;
            else if (*record == buffer) *record = buffer + sizeof kernel;
            else if (*record == buffer + sizeof kernel && valid > sizeof kernel + sizeof copy)
                *record = buffer + sizeof kernel + sizeof copy;
            else return 12;
            return 0;
        }
    "#;

    #[test]
    fn records_come_through_the_callbacks_in_their_order() {
        let folder = tempfile::tempdir().unwrap();
        let Some(folders) = library(folder.path(), STAND_IN) else {
            return;
        };
        let collector = Collector::start(&folders).unwrap();
        assert!(collector.now_ns().unwrap() > 1_000);
        let all = collector.take(1_000).unwrap();
        let seen: Vec<_> = all
            .iter()
            .map(|one| (one.name.as_str(), one.start_ns, one.end_ns))
            .collect();
        assert_eq!(
            seen,
            [("copy to the device", 200, 300), ("rms_norm_f32_4", 1_000, 1_500)]
        );
        // What began before the origin is left out.
        assert_eq!(collector.take(1_500).unwrap().len(), 1);
        // Calls are counted only while they are asked for.
        assert_eq!(collector.take_calls().unwrap(), []);
        collector.count_calls().unwrap();
        let counted = collector.take_calls().unwrap();
        let launched = FunctionCalls {
            name: "cuLaunchKernel".to_owned(),
            count: 1,
            seconds: 500e-9,
        };
        assert_eq!(counted, [launched]);
        assert_eq!(collector.take_calls().unwrap(), []);
        let library = collector.library;
        drop(collector);
        let message = library.check("cuptiActivityEnable", 7).unwrap_err().to_string();
        assert!(message.contains("CUPTI_ERROR_STAND_IN"), "{message}");
    }
}
