//! Options that count tokens, rows or steps.

use std::ops::RangeInclusive;

use crate::space::Count;

/// The parser of a count, `2000` or `2k`, within `range`.
pub(in crate::cli) fn counts<T>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: TryFrom<u64> + 'static,
{
    move |text: &str| {
        let count = text.parse::<Count>().ok().map(|count| count.0);
        let count = count.filter(|count| range.contains(count));
        count.and_then(|count| T::try_from(count).ok()).ok_or_else(|| {
            let (least, most) = (range.start(), range.end());
            match *most {
                u64::MAX => format!("write a whole number, {least} or more, such as 2000 or 2k"),
                most => format!("write a whole number from {least} to {most}"),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_units_and_bounds() {
        let small = counts::<u32>(2..=u64::MAX);
        assert_eq!((small("2"), small("1.5k")), (Ok(2), Ok(1500)));
        for wrong in ["1", "0k", "-4", "1.0005k", "5G", "2k tokens", ""] {
            let said = small(wrong).unwrap_err();
            assert!(said.contains("2 or more"), "{wrong}: {said}");
        }
        assert_eq!(
            counts::<u64>(1..=100)("1k").unwrap_err(),
            "write a whole number from 1 to 100"
        );
    }
}
