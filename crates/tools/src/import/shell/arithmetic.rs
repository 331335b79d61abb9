//! [`whole_number`]: what the sum in `$((..))` of a shell comes to.

/// Brackets within brackets, at most so many.
const DEEPEST: usize = 16;

/// The whole number that a sum of such numbers comes to, with `+ - * / %` and brackets; `None` of all else, and of what is too large.
pub(super) fn whole_number(text: &str) -> Option<i64> {
    let mut sum = Sum { rest: text, depth: 0 };
    let total = sum.total()?;
    sum.rest.trim_start().is_empty().then_some(total)
}

/// What is left to read of a sum.
struct Sum<'t> {
    rest: &'t str,
    depth: usize,
}

impl Sum<'_> {
    fn total(&mut self) -> Option<i64> {
        let mut total = self.product()?;
        while let Some(sign) = self.sign(&['+', '-']) {
            let next = self.product()?;
            total = match sign {
                '+' => total.checked_add(next)?,
                _ => total.checked_sub(next)?,
            };
        }
        Some(total)
    }

    fn product(&mut self) -> Option<i64> {
        let mut product = self.operand()?;
        while let Some(sign) = self.sign(&['*', '/', '%']) {
            let next = self.operand()?;
            product = match sign {
                '*' => product.checked_mul(next)?,
                '/' => product.checked_div(next)?,
                _ => product.checked_rem(next)?,
            };
        }
        Some(product)
    }

    fn operand(&mut self) -> Option<i64> {
        match self.sign(&['(', '-']) {
            Some('(') => self.deeper(|sum| {
                let total = sum.total()?;
                sum.sign(&[')'])?;
                Some(total)
            }),
            Some(_) => self.deeper(|sum| sum.operand()?.checked_neg()),
            None => self.number(),
        }
    }

    /// A number as the shell has it: with a zero in front it would be one of base 8 or 16.
    fn number(&mut self) -> Option<i64> {
        let end = self.rest.find(|letter: char| !letter.is_ascii_alphanumeric());
        let (number, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        let is_decimal = number == "0" || !number.starts_with('0');
        number.parse().ok().filter(|_| is_decimal)
    }

    /// Takes the next sign where it is one of these.
    fn sign(&mut self, signs: &[char]) -> Option<char> {
        self.rest = self.rest.trim_start();
        let sign = self.rest.chars().next().filter(|sign| signs.contains(sign))?;
        self.rest = &self.rest[sign.len_utf8()..];
        Some(sign)
    }

    fn deeper(&mut self, read: impl FnOnce(&mut Self) -> Option<i64>) -> Option<i64> {
        if self.depth == DEEPEST {
            return None;
        }
        self.depth += 1;
        let found = read(self);
        self.depth -= 1;
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_come_to_what_a_shell_makes_of_them() {
        for (text, number) in [
            ("2 + 3 * 4", 14),
            ("(2 + 3) * 4", 20),
            ("-7 / 2", -3),
            ("7 % 4 - 1", 2),
            ("64/(2*4)", 8),
            (" 0 ", 0),
        ] {
            assert_eq!(whole_number(text), Some(number), "{text}");
        }
    }

    #[test]
    fn what_is_no_plain_sum_comes_to_nothing() {
        let deep = "(".repeat(100) + "1" + &")".repeat(100);
        for text in [
            "",
            "1 +",
            "2 ** 3",
            "010",
            "0x10",
            "1 / 0",
            "1 % 0",
            "A * 2",
            "1 << 2",
            "(1",
            "1e4",
            "9223372036854775807 + 1",
            &deep,
        ] {
            assert_eq!(whole_number(text), None, "{text}");
        }
    }
}
