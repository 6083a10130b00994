//! Columns of text, aligned.

/// A table.
pub(super) struct Table {
    rows: Vec<Vec<String>>,
}

// === impl Table ===

impl Table {
    /// A table with these headings.
    pub(super) fn new(columns: &[&str]) -> Table {
        Table { rows: vec![columns.iter().map(|column| (*column).to_owned()).collect()] }
    }

    /// Adds a row.
    pub(super) fn row<const N: usize>(&mut self, cells: [String; N]) {
        // What others named must not move the cursor or make lines.
        let printable = |cell: String| cell.chars().map(|char| if char.is_control() { '?' } else { char }).collect();
        self.rows.push(cells.map(printable).into());
    }

    /// Whether it has no rows but its headings.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }

    /// As text, a line for each row.
    pub(super) fn rendered(&self) -> String {
        let mut widths: Vec<usize> = Vec::new();
        for row in &self.rows {
            widths.resize(widths.len().max(row.len()), 0);
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
            format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
        };
        self.rows.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_nothing_moves_the_cursor() {
        let mut table = Table::new(&["A", "LONG"]);
        assert!(table.is_empty());
        table.row(["wörd".to_owned(), "x".to_owned()]);
        table.row(["\u{1b}[2J\n".to_owned(), "y".to_owned()]);
        assert_eq!(table.rendered(), "A      LONG\nwörd   x\n?[2J?  y\n");
    }
}
