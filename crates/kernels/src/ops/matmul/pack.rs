//! Packing of the right operand into NR micro-panels, in the order in which the tiles read it.
//!
//! A NR micro-panel holds up to 48 columns of the result, that is V = 1, 2 or 3 vectors: for each unit of the summed dimension, V
//! lines with that unit of each column. Places beyond the matrix are zero. Packing converts to the kind of unit and
//! multiplies by a scale on the way, so that a weight of another dtype needs no copy of its own.

use super::finish;
use super::operand::{Left, Source};
use super::order::Order;
use super::tile::{LANES, Line, Unit};
use crate::ops::element::Element;
use candle_core::DType;
use core::arch::x86_64::*;
use peft_tune_core::plan::products::Tiling;
use std::ops::Range;

/// Asks for the cache line at `address`, which need not be valid, in the second-level cache.
#[inline(always)]
pub(super) fn fetch<T>(address: *const T) {
    // SAFETY: a hint, which never fails.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) }
}

/// Units ahead that a straight operand is asked for.
const AHEAD: usize = 16;

/// Vectors of the NR micro-panel that starts at `column`.
pub(super) fn vectors(columns: usize, column: usize) -> usize {
    Tiling::AVX512.panel_vectors(columns - column)
}

/// Packs the NR micro-panel of `source` that starts at `column`, for the units `units`, into `NR micro-panel` (V lines for each unit).
///
/// # Safety
/// The processor has AVX-512F, BW, DQ and VL.
pub(super) unsafe fn nr_panel<T: Element>(
    source: &Source<'_, T>,
    unit: Unit,
    column: usize,
    units: Range<usize>,
    nr_panel: &mut [Line],
) {
    let native = match unit {
        Unit::Single => DType::F32,
        Unit::Pair => DType::BF16,
    };
    let raw = T::DTYPE == native && source.scale == 1.0;
    // SAFETY: the caller's promise is the same; RAW is set only where the values have the unit's own dtype.
    unsafe {
        match (source.order, unit, raw) {
            (Order::Transposed, Unit::Single, false) => transposed::<T, false, false>(source, column, units, nr_panel),
            (Order::Transposed, Unit::Single, true) => transposed::<T, false, true>(source, column, units, nr_panel),
            (Order::Transposed, Unit::Pair, false) => transposed::<T, true, false>(source, column, units, nr_panel),
            (Order::Transposed, Unit::Pair, true) => transposed::<T, true, true>(source, column, units, nr_panel),
            (Order::Straight, Unit::Single, _) => straight::<T, false>(source, column, units, nr_panel),
            (Order::Straight, Unit::Pair, _) => straight::<T, true>(source, column, units, nr_panel),
        }
    }
}

/// Columns of the result are rows in memory: sixteen rows by sixteen units are turned at a time.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn transposed<T: Element, const PAIR: bool, const RAW: bool>(
    source: &Source<'_, T>,
    column: usize,
    units: Range<usize>,
    nr_panel: &mut [Line],
) {
    let (vectors, values) = (vectors(source.columns, column), 1 + usize::from(PAIR));
    for vector in 0..vectors {
        let first = column + vector * LANES;
        let rows = (source.columns - first).min(LANES);
        for block in units.clone().step_by(LANES) {
            let place = block * values;
            let whole = place + LANES * values <= source.depth;
            let mut lines = [_mm512_setzero_si512(); LANES];
            for (row, line) in lines.iter_mut().enumerate().take(rows) {
                let start = (first + row) * source.stride + place;
                // The same place of the rows that are packed next: far enough ahead for a weight that lies in memory.
                fetch(source.values.as_ptr().wrapping_add(start + LANES * source.stride));
                *line = if whole {
                    // SAFETY: sixteen units of this row lie within the matrix.
                    unsafe { load::<T, PAIR, RAW>(source.values.as_ptr().add(start), source.scale) }
                } else {
                    let rest = &source.values[start..(first + row) * source.stride + source.depth];
                    let padded = pad::<T, { 2 * LANES }>(rest);
                    // SAFETY: the copy has 32 values.
                    unsafe { load::<T, PAIR, RAW>(padded.as_ptr(), source.scale) }
                };
            }
            let lines = transpose(lines);
            let start = (block - units.start) * vectors + vector;
            let places = nr_panel[start..].iter_mut().step_by(vectors);
            for (place, line) in places.zip(&lines).take(units.end - block) {
                // SAFETY: a line is one aligned register.
                unsafe { _mm512_store_si512(place.0.as_mut_ptr().cast(), *line) };
            }
        }
    }
}

/// Columns of the result are columns in memory: a unit takes one or two rows.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn straight<T: Element, const PAIR: bool>(
    source: &Source<'_, T>,
    column: usize,
    units: Range<usize>,
    nr_panel: &mut [Line],
) {
    let (vectors, values) = (vectors(source.columns, column), 1 + usize::from(PAIR));
    let scale = _mm512_set1_ps(source.scale);
    for (unit, lines) in units.zip(nr_panel.chunks_exact_mut(vectors)) {
        for (vector, line) in lines.iter_mut().enumerate() {
            let first = column + vector * LANES;
            let columns = (source.columns - first).min(LANES);
            // Beyond the end of the summed dimension, where a pair may reach, there are zeros.
            let row = |index: usize| {
                let mask = if index < source.depth { finish::mask(columns) } else { 0 };
                let start = &source.values[(index * source.stride + first).min(source.values.len() - 1)..];
                fetch(start.as_ptr().wrapping_add(AHEAD * values * source.stride));
                // SAFETY: the mask keeps to the row, or to nothing.
                _mm512_mul_ps(unsafe { finish::load(start.as_ptr(), mask) }, scale)
            };
            let bits = if PAIR {
                let (low, high) = (
                    finish::rounded_to_bf16(row(unit * values)),
                    finish::rounded_to_bf16(row(unit * values + 1)),
                );
                combine(low, high)
            } else {
                _mm512_castps_si512(row(unit))
            };
            // SAFETY: a line is one aligned register.
            unsafe { _mm512_store_si512(line.0.as_mut_ptr().cast(), bits) };
        }
    }
}

/// Sixteen units of consecutive values.
///
/// # Safety
/// Sixteen units' worth of values can be read at `values`; with RAW they have the unit's own dtype.
#[inline(always)]
unsafe fn load<T: Element, const PAIR: bool, const RAW: bool>(values: *const T, scale: f32) -> __m512i {
    if RAW {
        // SAFETY: the caller's promise; sixteen units are 64 bytes of values of their own dtype.
        return unsafe { _mm512_loadu_si512(values.cast()) };
    }
    if PAIR && T::DTYPE == DType::F32 {
        // SAFETY: the caller's promise; the values are F32.
        return unsafe { rounded_pairs(values.cast(), scale) };
    }
    let mut line = Line::ZERO;
    for (unit, word) in line.0.iter_mut().enumerate() {
        // SAFETY: the caller's promise covers unit 15.
        *word = unsafe {
            if PAIR {
                let (low, high) = (values.add(2 * unit).read(), values.add(2 * unit + 1).read());
                bits::<T, PAIR, RAW>(low, scale) | bits::<T, PAIR, RAW>(high, scale) << 16
            } else {
                bits::<T, PAIR, RAW>(values.add(unit).read(), scale)
            }
        };
    }
    // SAFETY: a line is one aligned register.
    unsafe { _mm512_load_si512(line.0.as_ptr().cast()) }
}

/// Sixteen pairs of 32 values in F32.
///
/// # Safety
/// 32 values can be read at `values`; the processor has AVX-512F and BW.
#[inline(always)]
unsafe fn rounded_pairs(values: *const f32, scale: f32) -> __m512i {
    // The upper halves of the words of both registers, in order.
    const UPPER: [u16; 2 * LANES] = {
        let mut upper = [0; 2 * LANES];
        let mut index = 0;
        while index < upper.len() {
            upper[index] = 2 * index as u16 + 1;
            index += 1;
        }
        upper
    };
    // SAFETY: the caller's promise.
    unsafe {
        let scale = _mm512_set1_ps(scale);
        let low = finish::rounded_to_bf16(_mm512_mul_ps(_mm512_loadu_ps(values), scale));
        let high = finish::rounded_to_bf16(_mm512_mul_ps(_mm512_loadu_ps(values.add(LANES)), scale));
        _mm512_permutex2var_epi16(low, _mm512_loadu_si512(UPPER.as_ptr().cast()), high)
    }
}

/// The bits of one value in the unit's dtype.
#[inline(always)]
fn bits<T: Element, const PAIR: bool, const RAW: bool>(value: T, scale: f32) -> u32 {
    let scaled = if RAW { value.widen() } else { value.widen() * scale };
    match (PAIR, RAW) {
        (false, _) => scaled.to_bits(),
        // Widened from BF16: the low half is zero.
        (true, true) => scaled.to_bits() >> 16,
        (true, false) => u32::from(<half::bf16 as Element>::narrow(scaled).to_bits()),
    }
}

/// The first N values, with zeros where there are fewer.
pub(super) fn pad<T: Element, const N: usize>(values: &[T]) -> [T; N] {
    let mut padded = [T::narrow(0.0); N];
    let count = values.len().min(N);
    padded[..count].copy_from_slice(&values[..count]);
    padded
}

/// Packs rows of a transposed left operand: for each unit, that unit of each row.
#[inline(always)]
pub(super) fn mr_panel<T: Element>(
    left: &Left<'_, T>,
    unit: Unit,
    rows: &Range<usize>,
    units: Range<usize>,
    mr_panel: &mut [u32],
) {
    match rows.len() {
        16 => pack_rows::<T, 16>(left, unit, rows.start, units, mr_panel),
        8 => pack_rows::<T, 8>(left, unit, rows.start, units, mr_panel),
        6 => pack_rows::<T, 6>(left, unit, rows.start, units, mr_panel),
        4 => pack_rows::<T, 4>(left, unit, rows.start, units, mr_panel),
        2 => pack_rows::<T, 2>(left, unit, rows.start, units, mr_panel),
        _ => pack_rows::<T, 1>(left, unit, rows.start, units, mr_panel),
    }
}

#[inline(always)]
fn pack_rows<T: Element, const M: usize>(
    left: &Left<'_, T>,
    kind: Unit,
    row: usize,
    units: Range<usize>,
    mr_panel: &mut [u32],
) {
    // Beyond the end of the summed dimension, where a pair may reach, there are zeros.
    let zero = [T::narrow(0.0); M];
    let line = |index: usize| {
        left.values
            .get(index * left.stride + row..)
            .and_then(|line| line.first_chunk::<M>())
    };
    for (unit, place) in units.zip(mr_panel.as_chunks_mut::<M>().0) {
        let first = line(unit * kind.values()).unwrap_or(&zero);
        let second = line((unit + 1) * kind.values() - 1).unwrap_or(&zero);
        for (unit, (low, high)) in place.iter_mut().zip(first.iter().zip(second)) {
            *unit = match kind {
                Unit::Single => low.widen().to_bits(),
                Unit::Pair => low.widen().to_bits() >> 16 | high.widen().to_bits(),
            };
        }
    }
}

/// The upper halves of two lanes as a pair.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn combine(low: __m512i, high: __m512i) -> __m512i {
    let upper = _mm512_set1_epi32(0xFFFF_0000_u32 as i32);
    _mm512_or_si512(_mm512_srli_epi32::<16>(low), _mm512_and_si512(high, upper))
}

/// Turns sixteen rows of sixteen units.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn transpose(rows: [__m512i; LANES]) -> [__m512i; LANES] {
    let mut pairs = rows;
    for i in (0..LANES).step_by(2) {
        pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    // Register 4 g + c then holds, in its 128-bit lane l, column 4 l + c of the rows 4 g to 4 g + 3.
    let mut quads = pairs;
    for i in (0..LANES).step_by(4) {
        quads[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
        quads[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
        quads[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
        quads[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
    }
    let mut columns = quads;
    for c in 0..4 {
        let even = _mm512_shuffle_i32x4::<0x88>(quads[c], quads[4 + c]);
        let odd = _mm512_shuffle_i32x4::<0xDD>(quads[c], quads[4 + c]);
        let even_rest = _mm512_shuffle_i32x4::<0x88>(quads[8 + c], quads[12 + c]);
        let odd_rest = _mm512_shuffle_i32x4::<0xDD>(quads[8 + c], quads[12 + c]);
        columns[c] = _mm512_shuffle_i32x4::<0x88>(even, even_rest);
        columns[8 + c] = _mm512_shuffle_i32x4::<0xDD>(even, even_rest);
        columns[4 + c] = _mm512_shuffle_i32x4::<0x88>(odd, odd_rest);
        columns[12 + c] = _mm512_shuffle_i32x4::<0xDD>(odd, odd_rest);
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::simd::{Level, level};
    use half::bf16;

    /// Unit (`unit`, `column`) of the packed NR micro-panel, as its values.
    fn expected(source: &Source<'_, f32>, unit: Unit, index: usize, column: usize) -> Vec<f32> {
        let value = |depth: usize| {
            let inside = depth < source.depth && column < source.columns;
            let place = match source.order {
                Order::Transposed => column * source.depth + depth,
                Order::Straight => depth * source.columns + column,
            };
            if inside {
                source.values[place] * source.scale
            } else {
                0.0
            }
        };
        (0..unit.values()).map(|i| value(index * unit.values() + i)).collect()
    }

    fn unpacked(unit: Unit, word: u32) -> Vec<f32> {
        match unit {
            Unit::Single => vec![f32::from_bits(word)],
            Unit::Pair => [word as u16, (word >> 16) as u16]
                .map(|bits| bf16::from_bits(bits).to_f32())
                .to_vec(),
        }
    }

    #[test]
    fn every_value_finds_its_place_and_the_rest_is_zero() {
        if level() < Level::Avx512 {
            return;
        }
        for (columns, depth) in [(48, 32), (50, 37), (7, 3), (100, 64), (16, 1)] {
            // Small integers are exact in BF16.
            let values: Vec<f32> = (0..columns * depth).map(|i| (i % 251) as f32).collect();
            let narrow: Vec<bf16> = values.iter().map(|value| bf16::from_f32(*value)).collect();
            for (order, unit) in [
                (Order::Transposed, Unit::Single),
                (Order::Transposed, Unit::Pair),
                (Order::Straight, Unit::Single),
                (Order::Straight, Unit::Pair),
            ] {
                for scale in [1.0, 0.5] {
                    let stride = match order {
                        Order::Transposed => depth,
                        Order::Straight => columns,
                    };
                    let source = Source {
                        values: &values,
                        order,
                        columns,
                        depth,
                        stride,
                        scale,
                    };
                    let brain = Source {
                        values: &narrow,
                        order,
                        columns,
                        depth,
                        stride,
                        scale,
                    };
                    let units = depth.div_ceil(unit.values());
                    for column in (0..columns).step_by(Tiling::AVX512.nr()) {
                        let width = vectors(columns, column);
                        let mut lines = vec![Line([1; 16]); units * width];
                        let mut from_brain = lines.clone();
                        // SAFETY: the level was checked.
                        unsafe {
                            nr_panel(&source, unit, column, 0..units, &mut lines);
                            nr_panel(&brain, unit, column, 0..units, &mut from_brain);
                        }
                        for (index, (line, other)) in lines.iter().zip(&from_brain).enumerate() {
                            let (unit_index, vector) = (index / width, index % width);
                            for lane in 0..LANES {
                                let want = expected(&source, unit, unit_index, column + vector * LANES + lane);
                                assert_eq!(unpacked(unit, line.0[lane]), want);
                                assert_eq!(unpacked(unit, other.0[lane]), want);
                            }
                        }
                    }
                }
            }
        }
    }
}
