//! Results of a comparison: a row per load, a column per server; its tables and ratios.

use std::time::Duration;

use serde_json::{Value, json};

use crate::latency::Latency;
use crate::load::quantiles_to_json;
use crate::options::Shape;
use crate::report::{Table, count, median, median_time, ratios};
use crate::servers::Kind;

/// One load on one kind of server, in all rounds.
#[derive(Debug)]
pub(crate) struct Cell {
    /// Commands per second.
    pub(crate) rates: Vec<f64>,
    pub(crate) latency: Latency,
    pub(crate) cpu: Vec<Duration>,
}

impl Cell {
    fn new() -> Cell {
        Cell {
            rates: Vec::new(),
            latency: Latency::new(),
            cpu: Vec::new(),
        }
    }
}

/// All measurements: a row per load, a column per server.
#[derive(Debug)]
pub(crate) struct Results {
    pub(crate) shapes: Vec<Shape>,
    pub(crate) servers: Vec<Kind>,
    pub(crate) cells: Vec<Vec<Cell>>,
}

/// The interesting ratios: which server to which.
const RATIOS: &[(&str, &str)] = &[
    ("bsd-f0", "beanstalkd-f0"),
    ("bsd-f0", "beanstalkd"),
    ("bsd-f0", "echo-sync"),
    ("bsd-f50", "beanstalkd-f50"),
    ("bsd-f50", "bsd-memory"),
    ("bsd-memory", "beanstalkd"),
    ("bsd-memory", "echo"),
];

impl Results {
    pub(crate) fn new(shapes: Vec<Shape>, servers: Vec<Kind>) -> Results {
        let row = || servers.iter().map(|_| Cell::new()).collect();
        Results {
            cells: shapes.iter().map(|_| row()).collect(),
            shapes,
            servers,
        }
    }

    pub(crate) fn rates(&self) -> Table {
        self.table(|cell| count(median(&cell.rates)))
    }

    pub(crate) fn table(&self, show: impl Fn(&Cell) -> String) -> Table {
        let head = self.servers.iter().map(Kind::to_string);
        let mut table = Table::new(std::iter::once("load".to_owned()).chain(head));
        for (shape, row) in self.shapes.iter().zip(&self.cells) {
            table.push(std::iter::once(shape.to_string()).chain(row.iter().map(&show)));
        }
        table
    }

    pub(crate) fn ratios(&self) -> Table {
        let column = |name: &str| {
            self.servers
                .iter()
                .position(|kind| kind.to_string() == name)
        };
        let known = RATIOS
            .iter()
            .filter_map(|&(of, to)| Some((of, to, column(of)?, column(to)?)));
        let known: Vec<_> = known.collect();
        let head = known.iter().map(|(of, to, ..)| format!("{of} ÷ {to}"));
        let mut table = Table::new(std::iter::once("load".to_owned()).chain(head));
        for (shape, row) in self.shapes.iter().zip(&self.cells) {
            let cell = |&(_, _, of, to): &_| show_ratio(&row[of], &row[to]);
            table.push(std::iter::once(shape.to_string()).chain(known.iter().map(cell)));
        }
        table
    }

    pub(crate) fn to_json(&self) -> Value {
        let mut list = Vec::new();
        for (shape, row) in self.shapes.iter().zip(&self.cells) {
            for (server, cell) in self.servers.iter().zip(row) {
                list.push(json!({
                    "shape": shape.to_string(),
                    "server": server.to_string(),
                    "commands_per_second": median(&cell.rates),
                    "rounds": cell.rates,
                    "latency_us": quantiles_to_json(&cell.latency),
                    "server_cpu_us_per_command": median_time(&cell.cpu).as_nanos() as f64 / 1e3,
                }));
            }
        }
        Value::Array(list)
    }
}

/// The median of the ratios of each round.
fn show_ratio(of: &Cell, to: &Cell) -> String {
    let pairs = of.rates.iter().zip(&to.rates);
    ratios(&pairs.map(|(of, to)| of / to).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(rates: &[f64]) -> Cell {
        Cell {
            rates: rates.to_vec(),
            ..Cell::new()
        }
    }

    #[test]
    fn a_ratio_is_taken_within_each_round() {
        // The machine was half as fast in the second round, for both.
        let (of, to) = (cell(&[200.0, 100.0, 180.0]), cell(&[100.0, 50.0, 100.0]));
        assert_eq!(show_ratio(&of, &to), "2.00× (1.80–2.00)");
    }

    #[test]
    fn only_ratios_of_servers_that_were_measured_are_shown() {
        let servers = ["bsd-f0", "echo-sync", "echo"].map(|name| name.parse().unwrap());
        let results = Results {
            shapes: vec![Shape::SINGLE],
            servers: servers.to_vec(),
            cells: vec![vec![cell(&[50.0]), cell(&[100.0]), cell(&[200.0])]],
        };
        let text = results.ratios().to_string();
        assert!(text.contains("| bsd-f0 ÷ echo-sync |") && text.contains("0.50× (0.50–0.50)"));
        assert!(!text.contains("beanstalkd"));
    }
}
