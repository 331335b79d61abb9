//! Memory that is kept between launches.

use std::cell::RefCell;
use std::collections::HashMap;

use candle_core::{DType, Device, DeviceLocation, Result, Tensor};

use super::graph::{reads, refuse_capture};
use super::launch::empty;

thread_local! {
    // Design note: kept by the thread that launches, since each op would otherwise carry it in its arguments. One queue
    // orders all that is done with it.
    static SCRATCH: RefCell<HashMap<(DType, DeviceLocation), Tensor>> = RefCell::default();
    static CONSTANTS: RefCell<HashMap<(&'static str, DeviceLocation), Tensor>> = RefCell::default();
    static POINTERS: RefCell<HashMap<(Vec<u64>, DeviceLocation), Tensor>> = RefCell::default();
}

/// `elements` elements that are valid until the next call for the same dtype and device.
pub fn scratch(elements: usize, dtype: DType, device: &Device) -> Result<Tensor> {
    SCRATCH.with_borrow_mut(|all| {
        let key = (dtype, device.location());
        let fits = |tensor: &&Tensor| tensor.elem_count() >= elements && tensor.device().same_device(device);
        if let Some(tensor) = all.get(&key).filter(fits) {
            reads(tensor);
            return tensor.narrow(0, 0, elements);
        }
        refuse_capture("larger scratch")?;
        // The old one goes first, so that both never exist at once.
        all.remove(&key);
        let tensor = empty(elements, dtype, device)?;
        all.insert(key, tensor.clone());
        Ok(tensor)
    })
}

/// Bytes of the memory that products have for partial sums.
pub const WORKSPACE_BYTES: usize = 32 << 20;

/// A small table on `device`, made once between two calls of `forget_scratch`.
pub fn constant(name: &'static str, device: &Device, make: impl FnOnce() -> Vec<f32>) -> Result<Tensor> {
    CONSTANTS.with_borrow_mut(|all| {
        let key = (name, device.location());
        if let Some(tensor) = all.get(&key).filter(|tensor| tensor.device().same_device(device)) {
            reads(tensor);
            return Ok(tensor.clone());
        }
        refuse_capture(name)?;
        let values = make();
        let elements = values.len();
        let tensor = Tensor::from_vec(values, elements, device)?;
        all.insert(key, tensor.clone());
        Ok(tensor)
    })
}

/// A table of addresses on `device`, (n,) of 8 bytes each. Where they `stay`, as those of weights do, it is made once between two calls of
/// `forget_scratch`.
pub fn pointers(addresses: Vec<u64>, device: &Device, stay: bool) -> Result<Tensor> {
    let make = |addresses: &[u64]| {
        refuse_capture("a table of addresses")?;
        Tensor::from_iter(addresses.iter().map(|address| *address as i64), device)
    };
    if !stay {
        return make(&addresses);
    }
    POINTERS.with_borrow_mut(|all| {
        let key = (addresses, device.location());
        if let Some(tensor) = all.get(&key).filter(|tensor| tensor.device().same_device(device)) {
            reads(tensor);
            return Ok(tensor.clone());
        }
        let tensor = make(&key.0)?;
        all.insert(key, tensor.clone());
        Ok(tensor)
    })
}

/// Releases all scratch and the tables: else the first trial of a process alone would be charged with them.
pub(super) fn forget_scratch() {
    SCRATCH.take();
    CONSTANTS.take();
    POINTERS.take();
}
