CREATE TABLE customers (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    city TEXT
);
CREATE TABLE orders (
    id INTEGER PRIMARY KEY,
    customer_id INTEGER NOT NULL REFERENCES customers (id),
    sku TEXT NOT NULL,
    quantity INTEGER NOT NULL,
    placed DATE NOT NULL
);
CREATE INDEX orders_by_customer ON orders (customer_id);
CREATE INDEX orders_by_sku ON orders (sku);
INSERT INTO customers VALUES (1, 'Ada', 'London'), (2, 'Grace', 'New York'), (3, 'Konrad', 'Berlin');
INSERT INTO orders VALUES
    (101, 1, 'T-100', 1, '2026-01-05'),
    (102, 1, 'C-200', 4, '2026-01-05'),
    (103, 2, 'K-400', 1, '2026-01-07'),
    (104, 3, 'S-300', 2, '2026-01-09');
