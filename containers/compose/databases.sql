-- Run once, when PostgreSQL makes its volume; it makes `prefect` itself.
CREATE DATABASE mlflow;
CREATE DATABASE mlflow_users;
