//! CUPTI's records, as far as they are read: `cupti_activity.h` of CUDA 13.
//!
//! Records grow at their ends from one version to the next; what stands here has kept its place since CUDA 11.
//! `scripts/gpu/cupti-layouts.sh` compares these places with a header's, through the same file as the test below.

use std::ffi::{CStr, c_char};

use super::{Activity, ActivityKind};

/// `CUPTI_ACTIVITY_KIND_MEMCPY`
pub(super) const COPY: u32 = 1;
/// `CUPTI_ACTIVITY_KIND_MEMSET`
pub(super) const FILL: u32 = 2;
/// `CUPTI_ACTIVITY_KIND_DRIVER`
pub(super) const CALL: u32 = 4;
/// `CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL`
pub(super) const KERNEL: u32 = 10;
/// `CUPTI_CB_DOMAIN_DRIVER_API`
pub(super) const DRIVER_DOMAIN: u32 = 1;

/// The beginning of `CUpti_ActivityKernel10`.
#[repr(C)]
#[derive(Clone, Copy)]
struct KernelRecord {
    kind: u32,
    cache_config: u8,
    shared_memory_config: u8,
    registers_per_thread: u16,
    partitioned_global_cache: [u32; 2],
    start: u64,
    end: u64,
    completed: u64,
    device_id: u32,
    context_id: u32,
    stream_id: u32,
    grid: [i32; 3],
    block: [i32; 3],
    static_shared_memory: i32,
    dynamic_shared_memory: i32,
    local_memory_per_thread: u32,
    local_memory_total: u32,
    correlation_id: u32,
    grid_id: i64,
    name: *const c_char,
}

/// The beginning of `CUpti_ActivityMemcpy6`.
#[repr(C)]
#[derive(Clone, Copy)]
struct CopyRecord {
    kind: u32,
    /// `CUpti_ActivityMemcpyKind`
    copy_kind: u8,
    source_kind: u8,
    destination_kind: u8,
    flags: u8,
    bytes: u64,
    start: u64,
    end: u64,
    device_id: u32,
    context_id: u32,
    stream_id: u32,
}

/// The beginning of `CUpti_ActivityMemset4`.
#[repr(C)]
#[derive(Clone, Copy)]
struct FillRecord {
    kind: u32,
    value: u32,
    bytes: u64,
    start: u64,
    end: u64,
    device_id: u32,
    context_id: u32,
    stream_id: u32,
}

/// The beginning of `CUpti_ActivityAPI`.
#[repr(C)]
#[derive(Clone, Copy)]
struct CallRecord {
    kind: u32,
    /// Number of the function that was called: `CUpti_driver_api_trace_cbid`.
    cbid: u32,
    start: u64,
    end: u64,
}

/// Reads one record of a call of the driver: which function, and the nanoseconds that it took; `None` for other records.
///
/// # Safety
/// Requirements of [`read`].
pub(super) unsafe fn read_call(record: *const u8) -> Option<(u32, u64)> {
    // SAFETY: every record begins with its kind; the caller's promise covers the rest.
    unsafe {
        if record.cast::<u32>().read_unaligned() != CALL {
            return None;
        }
        let call = record.cast::<CallRecord>().read_unaligned();
        Some((call.cbid, call.end.saturating_sub(call.start)))
    }
}

/// Reads one record, with times by CUPTI's clock; `None` for kinds that nobody asked for, and where no time was taken.
///
/// # Safety
/// `record` points to a whole record of CUPTI's, and the name in it to a text that ends in zero.
pub(super) unsafe fn read(record: *const u8) -> Option<Activity> {
    // SAFETY: every record begins with its kind; the caller's promise covers the rest.
    let (kind, name, [start, end], bytes, stream) = unsafe {
        match record.cast::<u32>().read_unaligned() {
            KERNEL => {
                let kernel = record.cast::<KernelRecord>().read_unaligned();
                let name = match kernel.name.is_null() {
                    true => "unnamed kernel".to_owned(),
                    false => CStr::from_ptr(kernel.name).to_string_lossy().into_owned(),
                };
                (
                    ActivityKind::Kernel,
                    name,
                    [kernel.start, kernel.end],
                    0,
                    kernel.stream_id,
                )
            }
            COPY => {
                let copy = record.cast::<CopyRecord>().read_unaligned();
                let (kind, name) = copy_name(copy.copy_kind);
                (
                    kind,
                    name.to_owned(),
                    [copy.start, copy.end],
                    copy.bytes,
                    copy.stream_id,
                )
            }
            FILL => {
                let fill = record.cast::<FillRecord>().read_unaligned();
                let times = [fill.start, fill.end];
                (ActivityKind::Move, "fill".to_owned(), times, fill.bytes, fill.stream_id)
            }
            _ => return None,
        }
    };
    // A start of zero means that the time was not recorded.
    if start == 0 || end < start {
        return None;
    }
    Some(Activity {
        kind,
        name,
        start_ns: start,
        end_ns: end,
        bytes,
        stream,
    })
}

/// Kind and name of a copy, by its number in `CUpti_ActivityMemcpyKind`.
fn copy_name(kind: u8) -> (ActivityKind, &'static str) {
    match kind {
        1 => (ActivityKind::Transfer, "copy to the device"),
        2 => (ActivityKind::Transfer, "copy to the host"),
        8 => (ActivityKind::Move, "copy on the device"),
        10 => (ActivityKind::Transfer, "copy between devices"),
        _ => (ActivityKind::Move, "copy"),
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    /// Places of the fields, as the script prints them.
    fn places() -> String {
        let fields = [
            ("CUpti_ActivityKernel10.start", offset_of!(KernelRecord, start)),
            ("CUpti_ActivityKernel10.end", offset_of!(KernelRecord, end)),
            ("CUpti_ActivityKernel10.streamId", offset_of!(KernelRecord, stream_id)),
            ("CUpti_ActivityKernel10.gridX", offset_of!(KernelRecord, grid)),
            (
                "CUpti_ActivityKernel10.correlationId",
                offset_of!(KernelRecord, correlation_id),
            ),
            ("CUpti_ActivityKernel10.name", offset_of!(KernelRecord, name)),
            ("CUpti_ActivityMemcpy6.copyKind", offset_of!(CopyRecord, copy_kind)),
            ("CUpti_ActivityMemcpy6.bytes", offset_of!(CopyRecord, bytes)),
            ("CUpti_ActivityMemcpy6.start", offset_of!(CopyRecord, start)),
            ("CUpti_ActivityMemcpy6.end", offset_of!(CopyRecord, end)),
            ("CUpti_ActivityMemcpy6.streamId", offset_of!(CopyRecord, stream_id)),
            ("CUpti_ActivityMemset4.bytes", offset_of!(FillRecord, bytes)),
            ("CUpti_ActivityMemset4.start", offset_of!(FillRecord, start)),
            ("CUpti_ActivityMemset4.end", offset_of!(FillRecord, end)),
            ("CUpti_ActivityMemset4.streamId", offset_of!(FillRecord, stream_id)),
            ("CUpti_ActivityAPI.cbid", offset_of!(CallRecord, cbid)),
            ("CUpti_ActivityAPI.start", offset_of!(CallRecord, start)),
            ("CUpti_ActivityAPI.end", offset_of!(CallRecord, end)),
        ];
        let kinds = [
            ("CUPTI_ACTIVITY_KIND_MEMCPY", COPY as usize),
            ("CUPTI_ACTIVITY_KIND_MEMSET", FILL as usize),
            ("CUPTI_ACTIVITY_KIND_DRIVER", CALL as usize),
            ("CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL", KERNEL as usize),
            ("CUPTI_CB_DOMAIN_DRIVER_API", DRIVER_DOMAIN as usize),
        ];
        let lines = fields.into_iter().chain(kinds);
        lines.map(|(name, value)| format!("{name} {value}\n")).collect()
    }

    #[test]
    fn fields_lie_where_the_header_has_them() {
        let golden = include_str!("../../../../../tests/golden/cupti_layouts.txt");
        let kinds: String = golden
            .lines()
            .filter(|line| !line.contains("MEMCPY_KIND"))
            .map(|line| format!("{line}\n"))
            .collect();
        assert_eq!(places(), kinds);
        for (name, kind) in [("HTOD", 1u8), ("DTOH", 2), ("DTOD", 8), ("PTOP", 10)] {
            assert!(
                golden.contains(&format!("CUPTI_ACTIVITY_MEMCPY_KIND_{name} {kind}\n")),
                "{name}"
            );
            assert_ne!(copy_name(kind).1, "copy");
        }
    }

    #[test]
    fn records_are_read_from_their_bytes() {
        let mut kernel = [0u64; 24];
        kernel[0] = u64::from(KERNEL);
        (kernel[2], kernel[3]) = (1_500, 1_900);
        kernel[6] = 7;
        kernel[13] = c"attention_bf16_64".as_ptr() as u64;
        // SAFETY: larger than a record, with a name that lives.
        let read_kernel = unsafe { read(kernel.as_ptr().cast()) };
        let expected = Activity {
            kind: ActivityKind::Kernel,
            name: "attention_bf16_64".to_owned(),
            start_ns: 1_500,
            end_ns: 1_900,
            bytes: 0,
            stream: 7,
        };
        assert_eq!(read_kernel, Some(expected));

        let mut copy = [0u64; 16];
        // Kind, and the direction in the fifth byte.
        copy[0] = u64::from(COPY) | 2 << 32;
        (copy[1], copy[2], copy[3], copy[5]) = (4_096, 10, 30, 13);
        // SAFETY: as above.
        let copy = unsafe { read(copy.as_ptr().cast()) }.unwrap();
        assert_eq!(
            (copy.kind, copy.bytes, copy.stream),
            (ActivityKind::Transfer, 4_096, 13)
        );
        assert_eq!((copy.name.as_str(), copy.seconds()), ("copy to the host", 20e-9));
        // SAFETY: as above.
        assert_eq!(unsafe { read([99u64; 8].as_ptr().cast()) }, None);
        let call = [u64::from(CALL) | 307 << 32, 100, 350, 0, 0];
        // SAFETY: as above.
        assert_eq!(unsafe { read_call(call.as_ptr().cast()) }, Some((307, 250)));
        // SAFETY: as above.
        assert_eq!(unsafe { read(call.as_ptr().cast()) }, None);
        // SAFETY: as above.
        assert_eq!(unsafe { read_call(kernel.as_ptr().cast()) }, None);
    }
}
