//! The nodes of a parsed template, in the order of the source and without recursion.

use minijinja::machinery::ast::{Call, CallArg, Expr, Macro, Stmt};

/// A statement or an expression.
#[derive(Clone, Copy)]
pub(super) enum Node<'t, 'a> {
    Statement(&'t Stmt<'a>),
    Expression(&'t Expr<'a>),
}

/// Nodes still to be visited, the next one last.
pub(super) struct Nodes<'t, 'a> {
    ahead: Vec<Node<'t, 'a>>,
}

/// Every node of a template, parents before their children.
pub(super) fn nodes<'t, 'a>(root: &'t Stmt<'a>) -> Nodes<'t, 'a> {
    Nodes { ahead: vec![Node::Statement(root)] }
}

// === impl Nodes ===

impl<'t, 'a> Iterator for Nodes<'t, 'a> {
    type Item = Node<'t, 'a>;

    fn next(&mut self) -> Option<Node<'t, 'a>> {
        let node = self.ahead.pop()?;
        let mut children = Children(Vec::new());
        match node {
            Node::Statement(statement) => children.of_statement(statement),
            Node::Expression(expression) => children.of_expression(expression),
        }
        self.ahead.extend(children.0.into_iter().rev());
        Some(node)
    }
}

/// The children of one node, first to last.
struct Children<'t, 'a>(Vec<Node<'t, 'a>>);

// === impl Children ===

impl<'t, 'a> Children<'t, 'a> {
    fn of_statement(&mut self, statement: &'t Stmt<'a>) {
        match statement {
            Stmt::Template(template) => self.statements(&template.children),
            Stmt::EmitExpr(emit) => self.expressions([&emit.expr]),
            Stmt::EmitRaw(_) | Stmt::Continue(_) | Stmt::Break(_) => {}
            Stmt::ForLoop(each) => {
                self.expressions([&each.target, &each.iter]);
                self.expressions(&each.filter_expr);
                self.statements(&each.body);
                self.statements(&each.else_body);
            }
            Stmt::IfCond(condition) => {
                self.expressions([&condition.expr]);
                self.statements(&condition.true_body);
                self.statements(&condition.false_body);
            }
            Stmt::WithBlock(with) => {
                self.expressions(with.assignments.iter().flat_map(|(target, value)| [target, value]));
                self.statements(&with.body);
            }
            Stmt::Set(set) => self.expressions([&set.target, &set.expr]),
            Stmt::SetBlock(set) => {
                self.expressions([&set.target]);
                self.expressions(&set.filter);
                self.statements(&set.body);
            }
            Stmt::AutoEscape(escape) => {
                self.expressions([&escape.enabled]);
                self.statements(&escape.body);
            }
            Stmt::FilterBlock(filter) => {
                self.expressions([&filter.filter]);
                self.statements(&filter.body);
            }
            Stmt::Macro(declared) => self.of_macro(declared),
            Stmt::CallBlock(block) => {
                self.of_call(&block.call);
                self.of_macro(&block.macro_decl);
            }
            Stmt::Do(called) => self.of_call(&called.call),
        }
    }

    fn of_expression(&mut self, expression: &'t Expr<'a>) {
        match expression {
            Expr::Var(_) | Expr::Const(_) => {}
            Expr::Slice(slice) => {
                self.expressions([&slice.expr]);
                self.expressions(slice.start.iter().chain(&slice.stop).chain(&slice.step));
            }
            Expr::UnaryOp(operation) => self.expressions([&operation.expr]),
            Expr::BinOp(operation) => self.expressions([&operation.left, &operation.right]),
            Expr::Compare(compare) => {
                self.expressions([&compare.expr]);
                self.expressions(compare.ops.iter().map(|operand| &operand.expr));
            }
            Expr::IfExpr(choice) => {
                self.expressions([&choice.test_expr, &choice.true_expr]);
                self.expressions(&choice.false_expr);
            }
            Expr::Filter(filter) => {
                self.expressions(&filter.expr);
                self.arguments(&filter.args);
            }
            Expr::Test(test) => {
                self.expressions([&test.expr]);
                self.arguments(&test.args);
            }
            Expr::GetAttr(access) => self.expressions([&access.expr]),
            Expr::GetItem(access) => self.expressions([&access.expr, &access.subscript_expr]),
            Expr::Call(call) => self.of_call(call),
            Expr::List(list) => self.expressions(&list.items),
            Expr::Tuple(tuple) => self.expressions(&tuple.items),
            Expr::Map(map) => self.expressions(map.keys.iter().zip(&map.values).flat_map(|(key, value)| [key, value])),
        }
    }

    fn of_macro(&mut self, declared: &'t Macro<'a>) {
        self.expressions(&declared.args);
        self.expressions(&declared.defaults);
        self.statements(&declared.body);
    }

    fn of_call(&mut self, call: &'t Call<'a>) {
        self.expressions([&call.expr]);
        self.arguments(&call.args);
    }

    fn arguments(&mut self, arguments: &'t [CallArg<'a>]) {
        self.expressions(arguments.iter().map(|argument| match argument {
            CallArg::Pos(value) | CallArg::Kwarg(_, value) | CallArg::PosSplat(value) | CallArg::KwargSplat(value) => {
                value
            }
        }));
    }

    fn statements(&mut self, statements: &'t [Stmt<'a>]) {
        self.0.extend(statements.iter().map(Node::Statement));
    }

    fn expressions(&mut self, expressions: impl IntoIterator<Item = &'t Expr<'a>>) {
        self.0.extend(expressions.into_iter().map(Node::Expression));
    }
}
