//! The values of flags, and their meaning.

use std::fmt;
use std::str::FromStr;

use bsd::UsageError;
use bsd::random::Random;

/// Connections × pipelined commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) connections: usize,
    pub(crate) pipeline: usize,
}

impl Shape {
    /// Deep enough to load a server fully, with few connections.
    pub(crate) const FULL: Shape = Shape {
        connections: 8,
        pipeline: 64,
    };
    pub(crate) const SINGLE: Shape = Shape {
        connections: 1,
        pipeline: 1,
    };
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.connections, self.pipeline)
    }
}

impl FromStr for Shape {
    type Err = UsageError;

    fn from_str(text: &str) -> Result<Shape, UsageError> {
        let number = |text: &str| text.parse().ok().filter(|number| *number > 0);
        let shape = text.split_once('x').and_then(|(connections, pipeline)| {
            Some(Shape {
                connections: number(connections)?,
                pipeline: number(pipeline)?,
            })
        });
        shape.ok_or_else(|| "connections x pipelined commands are expected, as 50x16".into())
    }
}

/// A count: digits, and `k` or `m` for thousands or millions.
pub(crate) fn parse_count(text: &str) -> Result<u64, UsageError> {
    parse_scaled(text, 1000)
}

/// A size in bytes: digits, and `k`, `m` or `g` for powers of 1024.
pub(crate) fn parse_size(text: &str) -> Result<u64, UsageError> {
    parse_scaled(text, 1024)
}

fn parse_scaled(text: &str, unit: u64) -> Result<u64, UsageError> {
    let lower = text.to_ascii_lowercase();
    let (digits, power) = match lower.chars().last() {
        Some('k') => (&lower[..lower.len() - 1], 1),
        Some('m') => (&lower[..lower.len() - 1], 2),
        Some('g') => (&lower[..lower.len() - 1], 3),
        _ => (&lower[..], 0),
    };
    let number: Option<u64> = digits.parse().ok();
    number
        .and_then(|number| number.checked_mul(unit.pow(power)))
        .ok_or_else(|| format!("'{text}' is not a number, optionally followed by k, m or g").into())
}

/// The sizes of bodies: `100`, `100..4k` (each size equally likely), or `100:90,4k:9,64k:1` (sizes
/// and their weights).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BodySizes(Vec<Class>);

/// Sizes that are equally likely.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Class {
    min: u64,
    max: u64,
    /// The weights of this class and those before it.
    weight_upto: u64,
}

/// No server of the protocol accepts larger bodies.
const BODY_SIZE_MAX: u64 = 1 << 30;

impl BodySizes {
    pub(crate) fn fixed(size: u64) -> BodySizes {
        BodySizes(vec![Class {
            min: size,
            max: size,
            weight_upto: 1,
        }])
    }

    /// The size of the next body.
    pub(crate) fn pick(&self, random: &mut Random) -> usize {
        let class = match &self.0[..] {
            [only] => only,
            classes => {
                let total = classes.last().map_or(1, |class| class.weight_upto);
                let at = random.below(total);
                &classes[classes.partition_point(|class| class.weight_upto <= at)]
            }
        };
        (class.min + random.below(class.max - class.min + 1)) as usize
    }

    /// The average size.
    pub(crate) fn mean(&self) -> f64 {
        let (mut sum, mut before) = (0.0, 0);
        for class in &self.0 {
            let weight = (class.weight_upto - before) as f64;
            sum += weight * (class.min + class.max) as f64 / 2.0;
            before = class.weight_upto;
        }
        sum / before.max(1) as f64
    }

    pub(crate) fn max(&self) -> usize {
        self.0.iter().map(|class| class.max).max().unwrap_or(0) as usize
    }
}

impl FromStr for BodySizes {
    type Err = UsageError;

    fn from_str(text: &str) -> Result<BodySizes, UsageError> {
        let mut classes = Vec::new();
        let mut total = 0u64;
        for part in text.split(',') {
            let (range, weight) = part.split_once(':').unwrap_or((part, "1"));
            let (min, max) = range.split_once("..").unwrap_or((range, range));
            let (min, max) = (parse_size(min)?, parse_size(max)?);
            let weight = parse_count(weight)?;
            if min > max || max > BODY_SIZE_MAX || weight == 0 {
                return Err(format!("'{part}' is no size, range or weight of bodies").into());
            }
            total = total
                .checked_add(weight)
                .ok_or("the weights are too large")?;
            classes.push(Class {
                min,
                max,
                weight_upto: total,
            });
        }
        Ok(BodySizes(classes))
    }
}

impl fmt::Display for BodySizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before = 0;
        for (index, class) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{}", class.min)?;
            if class.max > class.min {
                write!(f, "..{}", class.max)?;
            }
            if self.0.len() > 1 {
                write!(f, ":{}", class.weight_upto - before)?;
            }
            before = class.weight_upto;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_is_two_numbers() {
        let shape: Shape = "50x16".parse().unwrap();
        assert_eq!((shape.connections, shape.pipeline), (50, 16));
        for wrong in ["50", "0x1", "1x0", "x", "50x16x2", "-1x1", ""] {
            assert!(wrong.parse::<Shape>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn counts_go_by_thousands_and_sizes_by_1024() {
        assert_eq!(parse_count("10m"), Ok(10_000_000));
        assert_eq!(parse_size("64K"), Ok(65_536));
        assert_eq!(parse_size("7"), Ok(7));
        for wrong in [
            "",
            "k",
            "-1",
            "1t",
            "1.5k",
            "99999999999999999999",
            "99999999999g",
        ] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_of_bodies_are_said_as_they_are_read() {
        for text in ["100", "10..1000", "100:90,4096:9,65536:1", "1..2:3,5:1"] {
            assert_eq!(text.parse::<BodySizes>().unwrap().to_string(), text);
        }
        for wrong in ["", "a", "5..1", "1:0", "1,", "2g"] {
            assert!(wrong.parse::<BodySizes>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_size_comes_as_often_as_its_weight_says() {
        let sizes: BodySizes = "1:80,5..6:20".parse().unwrap();
        assert_eq!(sizes.max(), 6);
        assert!((sizes.mean() - 1.9).abs() < 1e-9);
        let mut random = Random::new(1);
        let mut counts = [0u32; 7];
        (0..100_000).for_each(|_| counts[sizes.pick(&mut random)] += 1);
        assert_eq!(counts[0] + counts[2] + counts[3] + counts[4], 0);
        assert!((79_000..81_000).contains(&counts[1]), "{counts:?}");
        assert!((9_000..11_000).contains(&counts[5]), "{counts:?}");
        assert!((9_000..11_000).contains(&counts[6]), "{counts:?}");
    }
}
