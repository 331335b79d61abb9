//! Python's operators on values that are known; `None` of all that they are not for.

use serde_json::{Number, Value};

use super::value::{Evaluated, Known};

/// Letters that a product of texts may have.
const MOST_LETTERS: usize = 4_096;

/// The value of `left operator right`.
pub(super) fn binary(left: &Evaluated, operator: &str, right: &Evaluated) -> Option<Evaluated> {
    let value = match (&left.known, &right.known) {
        (Known::List(left), Known::List(right)) if operator == "+" => {
            let all = left.iter().chain(right.iter()).cloned();
            Some(Evaluated::list(all.collect()))
        }
        (Known::Map(left), Known::Map(right)) if operator == "|" => {
            let all = left.iter().chain(right.iter()).cloned();
            Some(Evaluated::map(all.collect()))
        }
        (Known::Plain(left), Known::Plain(right)) => of_plain(left, operator, right).map(Evaluated::from),
        _ => None,
    };
    value.map(|value| value.because([left, right]))
}

fn of_plain(left: &Value, operator: &str, right: &Value) -> Option<Value> {
    match (left, right) {
        (Value::String(left), Value::String(right)) => match operator {
            "+" => Some(format!("{left}{right}").into()),
            // Paths are joined so.
            "/" => Some(format!("{}/{right}", left.trim_end_matches('/')).into()),
            _ => None,
        },
        (Value::String(text), Value::Number(times)) | (Value::Number(times), Value::String(text)) => {
            let times = usize::try_from(times.as_i64()?.max(0)).ok()?;
            let fits = text.len().checked_mul(times)? <= MOST_LETTERS;
            (operator == "*" && fits).then(|| text.repeat(times).into())
        }
        _ => of_numbers(&number(left)?, operator, &number(right)?),
    }
}

/// A number, or a truth as one.
fn number(value: &Value) -> Option<Number> {
    match value {
        Value::Number(number) => Some(number.clone()),
        Value::Bool(flag) => Some(Number::from(u8::from(*flag))),
        _ => None,
    }
}

fn of_numbers(left: &Number, operator: &str, right: &Number) -> Option<Value> {
    if let (Some(left), Some(right)) = (left.as_i64(), right.as_i64())
        && let Some(whole) = of_whole(left, operator, right)
    {
        return Some(whole.into());
    }
    let (left, right) = (left.as_f64()?, right.as_f64()?);
    let is_nothing = right == 0.0 && ["/", "//", "%"].contains(&operator);
    let value = match operator {
        "+" => left + right,
        "-" => left - right,
        "*" => left * right,
        "/" => left / right,
        "//" => (left / right).floor(),
        "%" => left - right * (left / right).floor(),
        "**" => left.powf(right),
        _ => return None,
    };
    Number::from_f64(value).filter(|_| !is_nothing).map(Value::Number)
}

/// The whole number that whole numbers make, where they make one that is not too large.
fn of_whole(left: i64, operator: &str, right: i64) -> Option<i64> {
    match operator {
        "+" => left.checked_add(right),
        "-" => left.checked_sub(right),
        "*" => left.checked_mul(right),
        "//" => {
            let quotient = left.checked_div(right)?;
            let is_below = left % right != 0 && (left < 0) != (right < 0);
            Some(quotient - i64::from(is_below))
        }
        "%" => {
            let rest = left.checked_rem(right)?;
            // The sign is that of the divisor.
            let is_other = rest != 0 && (rest < 0) != (right < 0);
            Some(if is_other { rest + right } else { rest })
        }
        "**" => left.checked_pow(u32::try_from(right).ok()?),
        "<<" => left.checked_mul(1_i64.checked_shl(u32::try_from(right).ok().filter(|bits| *bits < 63)?)?),
        _ => None,
    }
}

/// Whether `left operator right` holds.
pub(super) fn compares(left: &Evaluated, operator: &str, right: &Evaluated) -> Option<bool> {
    let is_same = same(left, right);
    match operator {
        "==" | "is" => is_same,
        "!=" | "<>" | "is not" => is_same.map(|is_same| !is_same),
        "in" => contains(right, left),
        "not in" => contains(right, left).map(|is_in| !is_in),
        _ => {
            let (Known::Plain(left), Known::Plain(right)) = (&left.known, &right.known) else {
                return None;
            };
            let (left, right) = (number(left)?.as_f64()?, number(right)?.as_f64()?);
            match operator {
                "<" => Some(left < right),
                "<=" => Some(left <= right),
                ">" => Some(left > right),
                ">=" => Some(left >= right),
                _ => None,
            }
        }
    }
}

/// Whether two values are the same; `None` where that is not known.
fn same(left: &Evaluated, right: &Evaluated) -> Option<bool> {
    // What a call of a library returns is an object.
    let is_object = |one: &Evaluated| matches!(one.known, Known::Result(_) | Known::List(_) | Known::Map(_));
    match (&left.known, &right.known) {
        (Known::Plain(left), Known::Plain(right)) => match (number(left), number(right)) {
            (Some(left), Some(right)) => Some(left.as_f64() == right.as_f64()),
            _ => Some(left == right),
        },
        _ if left.is_nothing() && is_object(right) || is_object(left) && right.is_nothing() => Some(false),
        _ => left.is_same(right).then_some(true),
    }
}

fn contains(whole: &Evaluated, one: &Evaluated) -> Option<bool> {
    match &whole.known {
        Known::Plain(Value::String(text)) => Some(text.contains(one.text()?)),
        Known::Map(entries) => {
            let name = one.text()?;
            Some(entries.iter().any(|(key, _)| key == name))
        }
        Known::List(members) => {
            let found: Vec<Option<bool>> = members.iter().map(|member| same(member, one)).collect();
            match found.contains(&Some(true)) {
                true => Some(true),
                false => (!found.contains(&None)).then_some(false),
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn of(left: Value, operator: &str, right: Value) -> Option<Value> {
        binary(&Evaluated::of_json(&left), operator, &Evaluated::of_json(&right))?.plain()
    }

    #[test]
    fn operators_give_what_python_gives() {
        for (left, operator, right, expected) in [
            (json!(16), "*", json!(2), json!(32)),
            (json!(16), "/", json!(2), json!(8.0)),
            (json!(7), "//", json!(2), json!(3)),
            (json!(-7), "//", json!(2), json!(-4)),
            (json!(-7), "%", json!(3), json!(2)),
            (json!(2), "**", json!(10), json!(1024)),
            (json!(2), "**", json!(-1), json!(0.5)),
            (json!(0.5), "+", json!(1), json!(1.5)),
            (json!(true), "+", json!(1), json!(2)),
            (json!("a"), "+", json!("b"), json!("ab")),
            (json!("a/"), "/", json!("b"), json!("a/b")),
            (json!("ab"), "*", json!(2), json!("abab")),
            (json!([1]), "+", json!([2]), json!([1, 2])),
        ] {
            assert_eq!(
                of(left.clone(), operator, right.clone()),
                Some(expected),
                "{left} {operator} {right}"
            );
        }
        for (left, operator, right) in [
            (json!(1), "/", json!(0)),
            (json!(1), "//", json!(0)),
            (json!(i64::MIN), "//", json!(0)),
            (json!(1e300), "*", json!(1e300)),
            (json!("a"), "*", json!(1 << 30)),
            (json!("a"), "-", json!("b")),
            (json!(null), "+", json!(1)),
        ] {
            assert_eq!(
                of(left.clone(), operator, right.clone()),
                None,
                "{left} {operator} {right}"
            );
        }
    }

    #[test]
    fn comparisons_say_so_where_they_cannot_tell() {
        let of = |left: &Evaluated, operator: &str, right: &Evaluated| compares(left, operator, right);
        let json = Evaluated::of_json;
        let (two, nothing) = (Evaluated::from(json!(2)), Evaluated::from(Value::Null));
        let result = Evaluated::from(Known::Result(0));
        assert_eq!(of(&two, ">=", &json(&json!(2.0))), Some(true));
        assert_eq!(of(&two, "==", &json(&json!(2.0))), Some(true));
        assert_eq!(of(&nothing, "is", &result), Some(false));
        assert_eq!(of(&result, "is not", &nothing), Some(true));
        assert_eq!(of(&Evaluated::UNKNOWN, "is", &nothing), None);
        assert_eq!(of(&result, "==", &Evaluated::from(Known::Result(1))), None);
        assert_eq!(of(&json(&json!("lla")), "in", &json(&json!("llama"))), Some(true));
        let list = Evaluated::of_json(&json!(["a", "b"]));
        assert_eq!(of(&json(&json!("c")), "not in", &list), Some(true));
        assert_eq!(of(&json(&json!("c")), "<", &two), None);
    }

    proptest! {
        #[test]
        fn no_numbers_stop_an_operator(left in any::<i64>(), right in any::<i64>(), which in 0_usize..8) {
            let operator = ["+", "-", "*", "/", "//", "%", "**", "<<"][which];
            let _ = of(json!(left), operator, json!(right));
            let _ = of(json!(left as f64), operator, json!(right));
            let whole = |operator: &str| of(json!(left), operator, json!(right)).and_then(|one| one.as_i64());
            if let Some(quotient) = whole("//") {
                let rest = whole("%").map(i128::from);
                let again = rest.map(|rest| i128::from(quotient) * i128::from(right) + rest);
                prop_assert_eq!(again, Some(i128::from(left)));
            }
        }
    }
}
