//! Threads, vector instructions and memory bandwidth.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use candle_core::{DType, Result};
use rayon::prelude::*;

use super::clock::Effort;
use super::operand;
use peft_tune_core::predict::Host;
use peft_tune_kernels::ops::{attention, vectors};
use peft_tune_kernels::thread_pool::on_every_thread;

/// Elements of the buffers whose copying is timed: 64 MiB each, beyond the caches.
const ELEMENTS: usize = 16 << 20;

/// Facts about this machine that the memory of a step depends on.
pub fn host() -> Host {
    Host {
        threads: rayon::current_num_threads(),
        vectors: vectors(),
        device_bytes: 0,
    }
}

/// Makes every thread take what libraries keep for it, so that it is there before a count begins: whether a thread gets
/// a part of a small op is a matter of chance, and what it keeps then would be counted or not.
///
/// # Errors
/// Those of a small op.
pub fn warm_threads() -> Result<()> {
    let tensor = operand(&[32, 1, 32], DType::F32)?;
    let settings = attention::Settings {
        scale: 1.0,
        window: None,
        soft_cap: None,
    };
    let warm = || attention::forward(&tensor, &tensor, &tensor, &[0, 32], &settings).map(drop);
    // Within a broadcast each thread computes what it begins itself, and so it does within a task of the engine's threads.
    rayon::broadcast(|_| warm()).into_iter().collect::<Result<()>>()?;
    let failed = Mutex::new(None);
    on_every_thread(|| {
        if let Err(error) = warm() {
            failed
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .get_or_insert(error);
        }
    });
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// Bytes a second that copying reads and writes.
pub(super) fn memory_bytes_per_s(effort: Effort) -> f64 {
    let elements = match effort {
        Effort::Full => ELEMENTS,
        Effort::Coarse => ELEMENTS / 8,
    };
    let (from, mut to) = (vec![1f32; elements], vec![0f32; elements]);
    let mut best = f64::INFINITY;
    for _ in 0..4 {
        let started = Instant::now();
        let chunk = elements.div_ceil(rayon::current_num_threads() * 4);
        to.par_chunks_mut(chunk)
            .zip(from.par_chunks(chunk))
            .for_each(|(to, from)| to.copy_from_slice(from));
        best = best.min(started.elapsed().as_secs_f64());
    }
    std::hint::black_box(&to);
    (8 * elements) as f64 / best.max(1e-9)
}

/// Seconds to hand an op that does nothing to all threads and wait for them.
pub(super) fn wake_s(effort: Effort) -> f64 {
    let runs = match effort {
        Effort::Full => 400,
        Effort::Coarse => 50,
    };
    let tasks = 3 * rayon::current_num_threads();
    let mut times: Vec<f64> = (0..runs)
        .map(|_| {
            let started = Instant::now();
            (0..tasks).into_par_iter().for_each(|task| {
                std::hint::black_box(task);
            });
            started.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2].max(1e-9)
}
