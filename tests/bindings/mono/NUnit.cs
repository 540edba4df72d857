// The part of NUnit that the package's tests use, and a runner for it: Unity brings its own NUnit, Mono has none.
// A test that Unity would ignore for want of a broker fails here: there is one.
using System;
using System.Collections;
using System.Reflection;

namespace NUnit.Framework
{
    [AttributeUsage(AttributeTargets.Method)]
    public sealed class TestAttribute : Attribute { }

    [AttributeUsage(AttributeTargets.Method, AllowMultiple = true)]
    public sealed class TestCaseAttribute : Attribute
    {
        public readonly object[] Arguments;
        public TestCaseAttribute(params object[] arguments) { Arguments = arguments; }
    }

    public sealed class AssertionException : Exception { public AssertionException(string text) : base(text) { } }

    public static class Assert
    {
        public static void IsTrue(bool condition, string message = "not true")
        {
            if (!condition) throw new AssertionException(message);
        }

        public static void IsFalse(bool condition, string message = "not false") { IsTrue(!condition, message); }
        public static void IsNull(object value) { IsTrue(value == null, "not null: " + value); }
        public static void IsNotNull(object value) { IsTrue(value != null, "null"); }
        public static void Ignore(string message) { throw new AssertionException("ignored: " + message); }

        public static void AreEqual(object expected, object actual)
        {
            if (expected is ICollection && actual is ICollection)
            {
                expected = string.Join("|", new ArrayList((ICollection)expected).ToArray());
                actual = string.Join("|", new ArrayList((ICollection)actual).ToArray());
            }
            IsTrue(Equals(expected, actual), "expected <" + expected + "> but was <" + actual + ">");
        }

        public static T Throws<T>(Action code) where T : Exception
        {
            try { code(); }
            catch (T expected) { return expected; }
            throw new AssertionException("no " + typeof(T).Name);
        }
    }

    internal static class Runner
    {
        private static int run, failed;

        private static int Main()
        {
            foreach (Type type in Assembly.GetExecutingAssembly().GetTypes())
                foreach (MethodInfo method in type.GetMethods())
                    RunAll(type, method);
            Console.WriteLine(run + " tests, " + failed + " failed");
            return failed == 0 && run > 0 ? 0 : 1;
        }

        private static void RunAll(Type type, MethodInfo method)
        {
            if (method.IsDefined(typeof(TestAttribute), false)) RunOne(type, method, new object[0]);
            foreach (TestCaseAttribute one in method.GetCustomAttributes(typeof(TestCaseAttribute), false))
                RunOne(type, method, one.Arguments);
        }

        private static void RunOne(Type type, MethodInfo method, object[] arguments)
        {
            run++;
            try
            {
                method.Invoke(Activator.CreateInstance(type), arguments);
            }
            catch (TargetInvocationException error)
            {
                failed++;
                Console.WriteLine("FAILED " + type.Name + "." + method.Name + "\n" + error.InnerException);
            }
        }
    }
}
