//! Formats that llm-compressor writes (compressed-tensors), and FP8 in tiles as DeepSeek publishes it.

use safetensors::Dtype;

use super::PackedError;
use super::codes::{FP4, code_at, float8, power_of_two};
use super::packing::Packing;
use super::parts::Parts;
use super::scales::{Rounding, Tiling, Widening};

/// Columns of a group of NVFP4 and of MXFP4.
const NVFP4_GROUP: usize = 16;
const MXFP4_GROUP: usize = 32;

/// `weight` in bytes: F8_E4M3 or I8.
pub(super) fn read_bytes(
    parts: &Parts<'_>,
    packing: &Packing,
    (outputs, inputs): (usize, usize),
) -> Result<Vec<f32>, PackedError> {
    let weight = parts.shaped("weight", &[outputs, inputs], &[Dtype::F8_E4M3, Dtype::I8])?;
    let ending = match parts.find("weight_scale_inv") {
        Some(_) => "weight_scale_inv",
        None => "weight_scale",
    };
    let (scales, rounding) = parts.floats(ending)?;
    let tiling = tiling(parts, ending, packing, (outputs, inputs))?;
    let zeros = match parts.find("weight_zero_point") {
        None => Vec::new(),
        Some(_) => parts.zero_points(scales.len())?,
    };
    let widening = Widening {
        tiling: &tiling,
        scales: &scales,
        zeros: &zeros,
        rounding,
    };
    let bytes = weight.bytes;
    let at = |row: usize, column: usize| bytes[row * inputs + column];
    Ok(match weight.dtype {
        Dtype::I8 => widening.values((outputs, inputs), |row, column| {
            f32::from(at(row, column).cast_signed())
        }),
        _ => widening.values((outputs, inputs), |row, column| float8(at(row, column))),
    })
}

/// `weight_packed`: words of integers of 2, 4 or 8 bits, or bytes of two FP4.
pub(super) fn read_packed(
    parts: &Parts<'_>,
    packing: &Packing,
    shape: (usize, usize),
) -> Result<Vec<f32>, PackedError> {
    match parts.get("weight_packed")?.dtype {
        Dtype::U8 => read_fp4(parts, shape),
        _ => read_words(parts, packing, shape),
    }
}

fn read_fp4(parts: &Parts<'_>, (outputs, inputs): (usize, usize)) -> Result<Vec<f32>, PackedError> {
    let packed = parts.shaped("weight_packed", &[outputs, inputs.div_ceil(2)], &[Dtype::U8])?;
    let scale = parts.get("weight_scale")?;
    let (scales, group) = match scale.dtype {
        Dtype::F8_E4M3 => {
            let group = NVFP4_GROUP;
            parts.shaped("weight_scale", &[outputs, inputs.div_ceil(group)], &[Dtype::F8_E4M3])?;
            let (global, _) = parts.floats("weight_global_scale")?;
            let &[global] = global.as_slice() else {
                let tensor = parts.get("weight_global_scale")?;
                return Err(parts.mismatch("weight_global_scale", &tensor, "one float".to_owned()));
            };
            let (scales, _) = parts.floats("weight_scale")?;
            (
                scales.into_iter().map(|scale| scale / global).collect::<Vec<f32>>(),
                group,
            )
        }
        _ => {
            let group = MXFP4_GROUP;
            let dtypes = [Dtype::U8, Dtype::F8_E8M0];
            let tensor = parts.shaped("weight_scale", &[outputs, inputs.div_ceil(group)], &dtypes)?;
            (tensor.bytes.iter().map(|code| power_of_two(*code)).collect(), group)
        }
    };
    let widening = Widening {
        tiling: &Tiling::tiles(inputs, (1, group)),
        scales: &scales,
        zeros: &[],
        // Its reader widens FP4 to BF16, whatever the scales are.
        rounding: Rounding::Bf16,
    };
    let (bytes, row_bytes) = (packed.bytes, inputs.div_ceil(2));
    Ok(widening.values((outputs, inputs), |row, column| {
        let byte = bytes[row * row_bytes + column / 2];
        FP4[usize::from(byte >> (column % 2 * 4) & 15)]
    }))
}

fn read_words(
    parts: &Parts<'_>,
    packing: &Packing,
    (outputs, inputs): (usize, usize),
) -> Result<Vec<f32>, PackedError> {
    let packed = parts.get("weight_packed")?;
    let width = packed.shape.last().copied().unwrap_or_default();
    let fits = |bits: &usize| inputs.div_ceil(32 / bits) == width;
    let Some(bits) = [2, 4, 8].into_iter().find(fits) else {
        return Err(packing.refuse(&format!("{width} words for {inputs} columns")));
    };
    let words = parts.words("weight_packed", (outputs, width))?;
    // The shape before it was padded to whole words.
    let stated = parts.integers("weight_shape", 2)?;
    if stated != [outputs as i64, inputs as i64] {
        let tensor = parts.get("weight_shape")?;
        return Err(parts.mismatch(
            "weight_shape",
            &tensor,
            format!("the values {outputs} and {inputs}, not {stated:?}"),
        ));
    }
    let (scales, rounding) = parts.floats("weight_scale")?;
    let mut tiling = tiling(parts, "weight_scale", packing, (outputs, inputs))?;
    if parts.find("weight_g_idx").is_some() {
        tiling.groups = parts.groups("weight_g_idx", inputs, tiling.columns)?;
    }
    // Codes are stored above the middle of their range.
    let middle = (1u32 << (bits - 1)) as f32;
    let zeros = match parts.find("weight_zero_point") {
        None => Vec::new(),
        Some(_) => parts.packed_zero_points((outputs, tiling.columns), bits, middle)?,
    };
    let widening = Widening {
        tiling: &tiling,
        scales: &scales,
        zeros: &zeros,
        rounding,
    };
    Ok(widening.values((outputs, inputs), |row, column| {
        code_at(&words[row * width..(row + 1) * width], column, bits) as f32 - middle
    }))
}

/// The parts of the weight that the tensor of scales `ending` is of: one, rows, tiles, or groups of columns.
fn tiling(
    parts: &Parts<'_>,
    ending: &str,
    packing: &Packing,
    (outputs, inputs): (usize, usize),
) -> Result<Tiling, PackedError> {
    let tensor = parts.get(ending)?;
    let (rows, columns) = match *tensor.shape {
        [] | [1] => (1, 1),
        [rows] => (rows, 1),
        [rows, columns] => (rows, columns),
        _ => (0, 0),
    };
    let [tile_rows, tile_columns] = packing.tile();
    let size = if (rows, columns) == (1, 1) {
        Some((outputs, inputs))
    } else if rows == outputs && columns > 0 && inputs.is_multiple_of(columns) {
        Some((1, inputs / columns))
    } else if (rows, columns) == (outputs.div_ceil(tile_rows), inputs.div_ceil(tile_columns)) {
        Some((tile_rows, tile_columns))
    } else {
        None
    };
    let size = size.ok_or_else(|| {
        let tiles = [outputs.div_ceil(tile_rows), inputs.div_ceil(tile_columns)];
        let expected = format!("one scale, a scale for each of {outputs} rows or their groups, or {tiles:?} of tiles");
        parts.mismatch(ending, &tensor, expected)
    })?;
    Ok(Tiling::tiles(inputs, size))
}

impl Parts<'_> {
    /// Zero points of INT8, one a scale.
    fn zero_points(&self, scales: usize) -> Result<Vec<f32>, PackedError> {
        let tensor = self.get("weight_zero_point")?;
        let values: Vec<f32> = match tensor.dtype {
            Dtype::I8 => tensor.bytes.iter().map(|byte| f32::from(byte.cast_signed())).collect(),
            _ => self.floats("weight_zero_point")?.0,
        };
        match values.len() == scales {
            true => Ok(values),
            false => Err(self.mismatch("weight_zero_point", &tensor, format!("{scales} elements"))),
        }
    }

    /// Zero points of packed codes: packed too, along the rows.
    fn packed_zero_points(
        &self,
        (rows, columns): (usize, usize),
        bits: usize,
        middle: f32,
    ) -> Result<Vec<f32>, PackedError> {
        if !matches!(self.get("weight_zero_point")?.dtype, Dtype::I32) {
            return self.zero_points(rows * columns);
        }
        let in_word = 32 / bits;
        let words = self.words("weight_zero_point", (rows.div_ceil(in_word), columns))?;
        let at = |row: usize, column: usize| {
            let word = words[row / in_word * columns + column];
            (word >> (row % in_word * bits) & (u32::MAX >> (32 - bits))) as f32 - middle
        };
        Ok((0..rows)
            .flat_map(|row| (0..columns).map(move |column| (row, column)))
            .map(|(row, column)| at(row, column))
            .collect())
    }

    /// The group of each column.
    pub(super) fn groups(&self, ending: &str, inputs: usize, groups: usize) -> Result<Vec<usize>, PackedError> {
        let places = self.integers(ending, inputs)?;
        let in_range = |place: i64| usize::try_from(place).ok().filter(|place| *place < groups);
        let place = |value: i64| {
            in_range(value).ok_or_else(|| PackedError::OutOfRange {
                name: self.name(ending),
                value,
                expected: format!("the groups 0 to {}", groups.saturating_sub(1)),
            })
        };
        places.into_iter().map(place).collect()
    }
}
