//! Types that the script writes in annotations.

use oxc_ast::ast::{
    TSLiteral, TSSignature, TSTupleElement, TSType, TSTypeName, TSTypeOperatorOperator,
    TSTypeParameterInstantiation, TSTypeQuery, TSTypeQueryExprName, TSTypeReference,
};
use oxc_semantic::SymbolId;

use super::TypeChecker;
use super::expressions::borrowed_name;
use super::prepass::{TypeDeclaration, symbol_of};
use super::types::{ObjectType, Type, TypeId};

impl<'a> TypeChecker<'a> {
    /// Returns the type that an annotation describes; unknown if it is not a simple one.
    pub(super) fn annotated_type(&mut self, annotation: &'a TSType<'a>) -> TypeId {
        if !self.take_step() {
            return TypeId::UNKNOWN;
        }
        self.nested(|checker| checker.annotated_inner(annotation))
    }

    fn annotated_inner(&mut self, annotation: &'a TSType<'a>) -> TypeId {
        match annotation {
            TSType::TSStringKeyword(_) => TypeId::STRING,
            TSType::TSNumberKeyword(_) => TypeId::NUMBER,
            TSType::TSBooleanKeyword(_) | TSType::TSTypePredicate(_) => TypeId::BOOLEAN,
            TSType::TSNullKeyword(_) => TypeId::NULL,
            TSType::TSUndefinedKeyword(_) | TSType::TSVoidKeyword(_) => TypeId::UNDEFINED,
            TSType::TSLiteralType(it) => match &it.literal {
                TSLiteral::StringLiteral(text) => {
                    self.types.add(Type::Literal(text.value.as_str()))
                }
                TSLiteral::NumericLiteral(_) | TSLiteral::UnaryExpression(_) => TypeId::NUMBER,
                TSLiteral::BooleanLiteral(_) => TypeId::BOOLEAN,
                TSLiteral::TemplateLiteral(_) => TypeId::STRING,
                TSLiteral::BigIntLiteral(_) => TypeId::UNKNOWN,
            },
            TSType::TSTemplateLiteralType(_) => TypeId::STRING,
            TSType::TSArrayType(it) => {
                let element = self.annotated_type(&it.element_type);
                self.types.array(element)
            }
            TSType::TSTupleType(it) => {
                let elements: Option<Vec<TypeId>> = it
                    .element_types
                    .iter()
                    .map(|element| self.tuple_element(element))
                    .collect();
                elements.map_or(TypeId::UNKNOWN, |elements| self.types.tuple(&elements))
            }
            TSType::TSUnionType(it) => {
                let parts: Vec<TypeId> = it
                    .types
                    .iter()
                    .map(|part| self.annotated_type(part))
                    .collect();
                self.types.union(parts)
            }
            TSType::TSParenthesizedType(it) => self.annotated_type(&it.type_annotation),
            TSType::TSTypeOperatorType(it) if it.operator == TSTypeOperatorOperator::Readonly => {
                self.annotated_type(&it.type_annotation)
            }
            TSType::TSTypeLiteral(it) => self.annotated_object(&it.members),
            TSType::TSTypeReference(it) => self.named_type(it),
            TSType::TSTypeQuery(it) => self.queried_type(it),
            TSType::TSIndexedAccessType(it) => self.indexed_type(&it.object_type, &it.index_type),
            _ => TypeId::UNKNOWN,
        }
    }

    fn tuple_element(&mut self, element: &'a TSTupleElement<'a>) -> Option<TypeId> {
        match element {
            TSTupleElement::TSNamedTupleMember(it) if !it.optional => {
                self.tuple_element(&it.element_type)
            }
            element => {
                let simple = element.as_ts_type()?;
                Some(self.annotated_type(simple))
            }
        }
    }

    fn annotated_object(&mut self, members: &'a [TSSignature<'a>]) -> TypeId {
        let mut object = ObjectType {
            is_declared: true,
            ..ObjectType::default()
        };
        for member in members {
            match member {
                TSSignature::TSPropertySignature(it) => {
                    let value = match &it.type_annotation {
                        Some(annotation) => self.annotated_type(&annotation.type_annotation),
                        None => TypeId::UNKNOWN,
                    };
                    let value = match it.optional {
                        true => self.types.union([value, TypeId::UNDEFINED]),
                        false => value,
                    };
                    match borrowed_name(&it.key) {
                        Some(name) if !it.computed => object.set_field(name, value),
                        _ => object.index_type = Some(TypeId::UNKNOWN),
                    }
                }
                TSSignature::TSIndexSignature(it) => {
                    let value = self.annotated_type(&it.type_annotation.type_annotation);
                    object.index_type = Some(value);
                }
                _ => object.index_type = Some(TypeId::UNKNOWN),
            }
        }
        match object.fields.is_empty() && object.index_type.is_none() {
            true => TypeId::UNKNOWN,
            false => self.types.add_object(object),
        }
    }

    /// Returns the type of `T[number]` and `T["field"]`.
    fn indexed_type(&mut self, object: &'a TSType<'a>, index: &'a TSType<'a>) -> TypeId {
        let object = self.annotated_type(object);
        let index = self.annotated_type(index);
        match (self.types.get(object).clone(), self.types.get(index)) {
            (Type::Array { element, .. }, Type::Number) => element,
            (Type::Object(_) | Type::ResultObject(_), Type::Literal(name)) => {
                let name = *name;
                self.property_type(object, name).unwrap_or(TypeId::UNKNOWN)
            }
            _ => TypeId::UNKNOWN,
        }
    }

    fn named_type(&mut self, reference: &'a TSTypeReference<'a>) -> TypeId {
        let TSTypeName::IdentifierReference(name) = &reference.type_name else {
            return TypeId::UNKNOWN;
        };
        if let Some(symbol) = symbol_of(self.scoping, name) {
            return match reference.type_arguments {
                Some(_) => TypeId::UNKNOWN,
                None => self.declared_type(symbol),
            };
        }
        let arguments = reference.type_arguments.as_deref();
        self.standard_type(name.name.as_str(), arguments)
    }

    /// Returns a type of TypeScript's library.
    pub(super) fn standard_type(
        &mut self,
        name: &str,
        arguments: Option<&'a TSTypeParameterInstantiation<'a>>,
    ) -> TypeId {
        let arguments: Vec<TypeId> = arguments
            .iter()
            .flat_map(|arguments| &arguments.params)
            .take(2)
            .map(|argument| self.annotated_type(argument))
            .collect();
        match (name, &arguments[..]) {
            ("Array" | "ReadonlyArray", [element]) => self.types.array(*element),
            ("Promise" | "PromiseLike", [value]) => self.types.promise(*value),
            ("Awaited", [value]) => self.types.awaited(*value),
            ("Readonly" | "Required", [value]) => *value,
            ("NonNullable", [value]) => self.types.non_nullish(*value),
            ("Set" | "ReadonlySet", [element]) => self.types.add(Type::Set(*element)),
            ("Map" | "ReadonlyMap", [key, value]) => self.types.add(Type::Map(*key, *value)),
            ("Record", [TypeId::STRING | TypeId::NUMBER, value]) => {
                self.types.add_object(ObjectType {
                    index_type: Some(*value),
                    is_declared: true,
                    ..ObjectType::default()
                })
            }
            ("ReturnType", [function]) => match self.types.get(*function).clone() {
                Type::Function { result, .. } => result,
                Type::Tool(tool) => self.tool_result(tool.0),
                _ => TypeId::UNKNOWN,
            },
            _ => TypeId::UNKNOWN,
        }
    }

    /// Returns the type that the script declares with `type` or `interface`.
    fn declared_type(&mut self, symbol: SymbolId) -> TypeId {
        if let Some(known) = self.declared_types.get(&symbol) {
            return known.unwrap_or(TypeId::UNKNOWN);
        }
        let Some(declaration) = self.prepass.type_declarations.get(&symbol).copied() else {
            return TypeId::UNKNOWN;
        };
        if !self.scoping.symbol_redeclarations(symbol).is_empty() {
            return TypeId::UNKNOWN;
        }
        self.declared_types.insert(symbol, None);
        let found = match declaration {
            TypeDeclaration::Alias(it) if it.type_parameters.is_none() => {
                self.annotated_type(&it.type_annotation)
            }
            TypeDeclaration::Interface(it)
                if it.type_parameters.is_none() && it.extends.is_empty() =>
            {
                self.annotated_object(&it.body.body)
            }
            _ => TypeId::UNKNOWN,
        };
        self.declared_types.insert(symbol, Some(found));
        found
    }

    /// Returns the type of `typeof x` and `typeof tools.readFile`.
    fn queried_type(&mut self, query: &'a TSTypeQuery<'a>) -> TypeId {
        let name = match &query.expr_name {
            TSTypeQueryExprName::IdentifierReference(name) => {
                return match symbol_of(self.scoping, name) {
                    Some(symbol) => self.symbol_type(symbol),
                    None => TypeId::UNKNOWN,
                };
            }
            TSTypeQueryExprName::QualifiedName(name) => name,
            _ => return TypeId::UNKNOWN,
        };
        let mut names = vec![name.right.name.as_str()];
        let mut left = &name.left;
        loop {
            match left {
                TSTypeName::QualifiedName(name) => {
                    names.push(name.right.name.as_str());
                    left = &name.left;
                }
                TSTypeName::IdentifierReference(name) => {
                    let mut ty = match symbol_of(self.scoping, name) {
                        Some(_) => return TypeId::UNKNOWN,
                        None => self.tool_global(name.name.as_str()),
                    };
                    while let (Some(object), Some(name)) = (ty, names.pop()) {
                        ty = self.property_type(object, name);
                    }
                    return ty.unwrap_or(TypeId::UNKNOWN);
                }
                TSTypeName::ThisExpression(_) => return TypeId::UNKNOWN,
            }
        }
    }
}
