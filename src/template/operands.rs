//! Operands of `~` and `+`, made texts in Python's way.
//!
//! The engine's `~` writes numbers and containers in its own way (`1e20` in full, for one), so each operand of it that
//! may be other than a text gets the filter `string`. And where one operand of a chain of `+` is marked `safe`, Python
//! escapes the others (MarkupSafe's `Markup.__add__`), even though nothing else is escaped in chat templates: these get
//! the filter [`ESCAPED`]. Only the marks that stand in the chain itself are seen.
//!
//! A filter is appended to names, attributes, items, slices, calls and filters, which it binds to as they stand, and to
//! both branches of a choice. Constants and arithmetic are texts, or print alike in both languages.

use minijinja::machinery::ast::{BinOp, BinOpKind, Expr, Stmt};

use super::tree::{Node, nodes};

/// The filter that operands of `+` pass beside one that is marked: `escape`, for texts alone.
pub(super) const ESCAPED: &str = "__escaped";

const STRING: &str = "|string";
const ESCAPE: &str = "|__escaped";

/// The filters to be appended, each with the byte after the operand.
#[derive(Default)]
struct Suffixes(Vec<(usize, &'static str)>);

/// The source with the filters; `root` is the tree of that source.
pub(super) fn with_filters(source: &str, root: &Stmt<'_>) -> String {
    let mut suffixes = Suffixes::default();
    for node in nodes(root) {
        let Node::Expression(Expr::BinOp(operation)) = node else { continue };
        match operation.op {
            BinOpKind::Concat => {
                suffixes.note(&operation.left, STRING);
                suffixes.note(&operation.right, STRING);
            }
            // Every chain is met again at each of its operations, with fewer operands: the filters are the same or fewer.
            BinOpKind::Add => {
                let operands = chain(operation);
                if operands.iter().any(|operand| is_marked(operand)) {
                    operands
                        .iter()
                        .filter(|operand| !is_marked(operand))
                        .for_each(|operand| suffixes.note(operand, ESCAPE));
                }
            }
            _ => {}
        }
    }
    suffixes.applied_to(source)
}

/// The operands of a chain of `+`.
fn chain<'t, 'a>(operation: &'t BinOp<'a>) -> Vec<&'t Expr<'a>> {
    let mut ahead = vec![&operation.right, &operation.left];
    let mut operands = Vec::new();
    while let Some(operand) = ahead.pop() {
        match operand {
            Expr::BinOp(inner) if matches!(inner.op, BinOpKind::Add) => ahead.extend([&inner.right, &inner.left]),
            _ => operands.push(operand),
        }
    }
    operands
}

fn is_marked(operand: &Expr<'_>) -> bool {
    matches!(operand, Expr::Filter(filter) if matches!(filter.name, "safe" | "escape" | "e"))
}

// === impl Suffixes ===

impl Suffixes {
    fn note(&mut self, operand: &Expr<'_>, filter: &'static str) {
        let mut operands = vec![operand];
        while let Some(operand) = operands.pop() {
            match operand {
                Expr::Var(_)
                | Expr::GetAttr(_)
                | Expr::GetItem(_)
                | Expr::Slice(_)
                | Expr::Call(_)
                | Expr::Filter(_) => {
                    self.0.push((operand.span().end_offset as usize, filter));
                }
                Expr::IfExpr(choice) => {
                    operands.push(&choice.true_expr);
                    operands.extend(&choice.false_expr);
                }
                _ => {}
            }
        }
    }

    fn applied_to(mut self, source: &str) -> String {
        self.0.sort_unstable();
        self.0.dedup();
        let mut out = String::with_capacity(source.len().saturating_add(self.0.len().saturating_mul(STRING.len())));
        let mut done = 0;
        for (end, filter) in self.0 {
            out.push_str(source.get(done..end).unwrap_or_default());
            out.push_str(filter);
            done = end;
        }
        out.push_str(source.get(done..).unwrap_or_default());
        out
    }
}
