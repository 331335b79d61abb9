//! GPTQ: codes in words along the inputs, zero points in words along the outputs.

use safetensors::Dtype;

use super::PackedError;
use super::codes::code_at;
use super::packing::Packing;
use super::parts::Parts;
use super::scales::{Tiling, Widening};

pub(super) fn read(
    parts: &Parts<'_>,
    packing: &Packing,
    (outputs, inputs): (usize, usize),
) -> Result<Vec<f32>, PackedError> {
    let quantized = parts.get("qweight")?;
    let height = quantized.shape.first().copied().unwrap_or_default();
    let fits = |bits: &usize| inputs.is_multiple_of(32 / bits) && inputs / (32 / bits) == height;
    let Some(bits) = [2, 4, 8].into_iter().find(fits) else {
        return Err(packing.refuse(&format!(
            "{height} rows of words for {inputs} inputs (2, 4 and 8 bits are read)"
        )));
    };
    let words = parts.words("qweight", (height, outputs))?;
    let groups = parts.get("scales")?.shape.first().copied().unwrap_or_default();
    parts.shaped("scales", &[groups, outputs], &[Dtype::F16, Dtype::BF16, Dtype::F32])?;
    let (scales, rounding) = parts.floats("scales")?;
    let zeros = zero_points(parts, packing, (groups, outputs), bits)?;
    let columns = match parts.find("g_idx") {
        Some(_) => parts.groups("g_idx", inputs, groups)?,
        None => consecutive(parts, (inputs, groups))?,
    };
    // One part a row and group, as for the other formats: the scales lie the other way round here.
    let tiling = Tiling {
        rows: 1,
        groups: columns,
        columns: groups,
    };
    let widening = Widening {
        tiling: &tiling,
        scales: &turned(&scales, outputs),
        zeros: &turned(&zeros, outputs),
        rounding,
    };
    let (in_word, mask) = (32 / bits, u32::MAX >> (32 - bits));
    Ok(widening.values((outputs, inputs), |row, column| {
        let word = words[column / in_word * outputs + row];
        (word >> (column % in_word * bits) & mask) as f32
    }))
}

/// (groups, out) in rows of `outputs`, turned to (out, groups).
pub(super) fn turned(values: &[f32], outputs: usize) -> Vec<f32> {
    let groups = values.len() / outputs.max(1);
    let at = |index: usize| values[index % groups * outputs + index / groups];
    (0..values.len()).map(at).collect()
}

/// The group of each column where they stand in order.
pub(super) fn consecutive(parts: &Parts<'_>, (inputs, groups): (usize, usize)) -> Result<Vec<usize>, PackedError> {
    if groups == 0 || !inputs.is_multiple_of(groups) {
        let tensor = parts.get("scales")?;
        return Err(parts.mismatch("scales", &tensor, format!("a number of groups that divides {inputs}")));
    }
    Ok((0..inputs).map(|column| column / (inputs / groups)).collect())
}

fn zero_points(
    parts: &Parts<'_>,
    packing: &Packing,
    (groups, outputs): (usize, usize),
    bits: usize,
) -> Result<Vec<f32>, PackedError> {
    let width = outputs.div_ceil(32 / bits);
    let words = parts.words("qzeros", (groups, width))?;
    let mask = i64::from(u32::MAX >> (32 - bits));
    let rows = words.chunks(width.max(1));
    let zero = |word: u32| (i64::from(word) + packing.missing_of_zeros()) & mask;
    Ok(rows
        .flat_map(|row| (0..outputs).map(|output| zero(code_at(row, output, bits)) as f32))
        .collect())
}
